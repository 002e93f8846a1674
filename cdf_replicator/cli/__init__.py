"""Parse the command line and call one command; imports are late, so that ``--help`` starts fast."""

from __future__ import annotations

import os
import sys
from typing import Final

__all__ = ["main"]

PROGRAM: Final = "cdf-replicator"
FAILED: Final = 1
INTERRUPTED: Final = 130


def main() -> None:
    """Run the command line; print an error as a message instead of a traceback."""
    if sys.argv[1:] == ["healthcheck"]:
        from cdf_replicator.cli.http_client import alive

        sys.exit(alive())
    from cdf_replicator.cli.app import app

    try:
        app(prog_name=PROGRAM)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - the outermost handler
        sys.exit(report_error(error))


def report_error(error: Exception) -> int:
    """Print the error to stderr and return the exit code."""
    if os.environ.get("CDF_LOG__LEVEL", "").lower() == "debug":
        import traceback

        traceback.print_exception(error)
    ours = type(error).__module__.split(".")[0] in ("cdf_replicator", "connectors")
    text = str(error) if ours else f"{type(error).__name__}: {' '.join(str(error).split())}"
    hint = "" if ours else " (CDF_LOG__LEVEL=debug shows where)"
    sys.stderr.write(f"{PROGRAM}: {text}{hint}\n")
    return int(getattr(error, "exit_code", FAILED))
