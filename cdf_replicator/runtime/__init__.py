"""Run the service: its lease, the threads of its routes, operator commands and shutdown."""

from cdf_replicator.runtime.supervisor import Supervisor, run

__all__ = ["Supervisor", "run"]
