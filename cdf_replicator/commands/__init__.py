"""Execute the commands of the CLI, in a Spark session of their own or through the lease holder."""

__all__ = ["changes", "dead_letters", "enable", "replay", "validate"]
