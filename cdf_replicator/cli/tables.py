"""The commands ``changes`` and ``enable``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from cdf_replicator.settings import Settings, TableSettings

Named = Annotated[
    str,
    typer.Argument(metavar="TABLE", help="A configured table, a path, or a name in the catalog.", show_default=False),
]


def _timestamp(text: str) -> str:
    from cdf_replicator.settings import parse_timestamp

    if parse_timestamp(text) is None:
        expected = "a date or time such as 2026-01-31, 2026-01-31 12:00:00 or 2026-01-31T12:00:00.123+01:00"
        raise typer.BadParameter(f"{text!r} is not {expected}")
    return text


Moment = typer.Option(
    metavar="T",
    parser=_timestamp,
    help="Commit time instead of a version, such as 2026-01-31T12:00:00Z; UTC unless it has an offset.",
)


def _load_tables() -> TableSettings:
    from cdf_replicator import settings
    from cdf_replicator.monitoring import logs

    reading = settings.load_table_settings()
    logs.configure_command(reading.log.level, reading.log.format)
    return reading


def _service_settings() -> Settings | None:
    """Return the configuration that names the running service; None if it is incomplete, since the command needs a table only."""
    from cdf_replicator.settings import ConfigurationError, load

    try:
        return load()
    except ConfigurationError:
        return None


def changes(
    table: Named,
    first: Annotated[int | None, typer.Option("--from", metavar="N", min=0, help="First commit version.")] = None,
    last: Annotated[
        int | None, typer.Option("--to", metavar="M", min=0, help="Last commit version. [default: the newest]")
    ] = None,
    from_timestamp: Annotated[str | None, Moment] = None,
    to_timestamp: Annotated[str | None, Moment] = None,
    key: Annotated[
        str | None, typer.Option(metavar="K", help="Only rows of this key: values of KEYS, joined by a colon.")
    ] = None,
    keys: Annotated[
        str | None, typer.Option(metavar="A,B", help="Key columns. [default: KEYS of the configured table]")
    ] = None,
    format_: Annotated[Literal["table", "json", "csv"], typer.Option("--format", help="Output format.")] = "table",
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Print at most N rows.")] = None,
) -> None:
    """Print a table's change feed, ordered by version, to inspect it before a replay or resync.

    Reads the table only: no lease, no state path, no sink. JSON is one object per line. In key values, % and : are written
    as %25 and %3A.

    \b
    Examples:
      cdf-replicator changes orders --from 12
      cdf-replicator changes orders --from 12 --to 20 --key 4711
      cdf-replicator changes s3a://lake/orders --from-timestamp 2026-01-31 --format json | jq .
    """  # noqa: D301 - click keeps the line breaks after this mark
    begin = _one(first, from_timestamp, "--from", "--from-timestamp")
    if begin is None:
        raise typer.BadParameter("one of --from and --from-timestamp is needed", param_hint="'--from'")
    end = _one(last, to_timestamp, "--to", "--to-timestamp")
    if isinstance(begin, int) and isinstance(end, int) and end < begin:
        raise typer.BadParameter(f"{end} is before {begin}", param_hint="'--to'")
    reading = _load_tables()
    configured = reading.tables[table].keys if table in reading.tables else ()
    columns = tuple(name.strip() for name in keys.split(",")) if keys else configured
    if key is not None and not columns:
        raise typer.BadParameter("name the key columns with --keys", param_hint="'--key'")

    from cdf_replicator.commands import changes as command
    from cdf_replicator.commands import session
    from cdf_replicator.queries.query import ReadChanges

    source = session.source_named(table, reading.tables)
    wanted = ReadChanges(
        table=source.slug,
        path=source.path,
        catalog_name=source.name,
        first=begin,
        last=end,
        keys=columns,
        key=key,
        limit=limit,
        format=format_,
    )
    raise typer.Exit(command.changes(reading, _service_settings(), wanted))


def enable(table: Named) -> None:
    """Turn on the change feed of an existing table and print the first version it covers.

    Changes nothing if the feed is already on.

    \b
    Examples:
      cdf-replicator enable orders
      cdf-replicator enable s3a://lake/orders
    """  # noqa: D301 - click keeps the line breaks after this mark
    reading = _load_tables()

    from cdf_replicator.commands import enable as command
    from cdf_replicator.commands import session

    raise typer.Exit(command.enable(reading, session.source_named(table, reading.tables)))


def _one(version: int | None, timestamp: str | None, option: str, other: str) -> int | str | None:
    if version is not None and timestamp is not None:
        raise typer.BadParameter(f"give either this or {option}, not both", param_hint=f"'{other}'")
    return timestamp if version is None else version
