"""Carry out what each command of the CLI does, in a Spark session or by the lease holder."""

__all__ = ["changes", "dead_letters", "enable", "replay", "validate"]
