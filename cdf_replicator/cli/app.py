"""The root command."""

from __future__ import annotations

import platform
from typing import Annotated, Final

import typer

from cdf_replicator import __version__
from cdf_replicator.cli import PROGRAM, config, dead_letters, replay, run, status, tables, validate

# Delta's own spellings are accepted and not documented.
_ALIASES: Final = {"startingVersion": "starting-version", "endingVersion": "ending-version"}

app = typer.Typer(
    name=PROGRAM,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # rich help triples the start time of --help
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda token: _ALIASES.get(token, token),
        "max_content_width": 100,
    },
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Follow the Change Data Feed of Delta tables and keep other systems in step.

    Configured by environment variables (CDF_...); see: cdf-replicator config env

    \b
    Examples:
      export CDF_STATE_PATH=/var/lib/cdf
      export CDF_TABLES__ORDERS__PATH=/lake/orders CDF_TABLES__ORDERS__KEYS=id
      export CDF_TABLES__ORDERS__SINKS=cache
      export CDF_SINKS__CACHE__TYPE=redis CDF_SINKS__CACHE__URL=redis://cache:6379/0
      cdf-replicator validate
      cdf-replicator run

    \b
    Exit codes:
      0   done, or run was stopped by SIGTERM or Ctrl-C
      1   failed, stopped before it was done, or verify found differences
      2   wrong usage
      75  another process holds the state path or has taken the lease over, the state path's object store does not
          answer, run --once gave up on something outside, verify could not compare, or there is no service to reload
      78  the configuration is wrong, the port is in use, the state path can't be written or has another format, or
          Spark could not start
      130 interrupted by Ctrl-C
    """  # noqa: D301 - click keeps the line breaks after this mark


def version() -> None:
    """Print versions and the installed sink types.

    \b
    Examples:
      cdf-replicator version
      cdf-replicator --version
    """  # noqa: D301 - click keeps the line breaks after this mark
    from importlib.metadata import entry_points
    from importlib.metadata import version as version_of

    typer.echo(f"cdf-replicator {__version__}")
    for name in ("pyspark", "delta-spark"):
        typer.echo(f"{name} {version_of(name)}")
    typer.echo(f"python {platform.python_version()}")
    for point in sorted(entry_points(group="cdf_replicator.sinks")):
        origin = f"{point.dist.name} {point.dist.version}" if point.dist else "?"
        typer.echo(f"sink {point.name} ({origin})")


for command in (
    *(run.run, run.reload),
    *(replay.replay, replay.resync, replay.pause, replay.resume),
    validate.verify,
    *(tables.changes, tables.enable),
    *(validate.validate, status.status, status.healthcheck),
    version,
):
    app.command()(command)
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(config.app, name="config")
