"""Execute the queries of commands that only read, in the running service or in the Spark session of a command."""

__all__ = ["answer", "execution", "handler", "query", "running"]
