"""Run the service: its lease, the threads of its routes, operator commands and shutdown."""
