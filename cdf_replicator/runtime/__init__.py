"""Run the service: its lease, the threads of its routes, operator commands and shutdown."""

__all__ = ["exit_codes", "supervisor"]
