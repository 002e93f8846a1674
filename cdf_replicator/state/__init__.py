"""Keep what must survive a restart, and the lease on it, under the state path."""
