"""Define the exit codes of the service and of its commands."""

from typing import Final

DONE: Final = 0
FAILED: Final = 1
TEMPORARY: Final = 75
CONFIGURATION: Final = 78
