"""Run one route, from its start position to each committed micro-batch."""
