"""Define every error that the service raises or knows, and what is done about it."""
