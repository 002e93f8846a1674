"""The service's own settings, by group. Each sink defines its own in ``connectors.Sink.Settings``."""

from __future__ import annotations

import re
from datetime import date, datetime
from pathlib import Path  # noqa: TC003 - pydantic reads the annotation
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, field_validator

from cdf_replicator.settings.fields import AnyCase, JsonObject, MayHoldSecrets, NamePairs, check_token, parse_timestamp
from connectors.settings import UpToADay


class Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _timestamp_text(value: Any) -> Any:
    """Return a date as text, since YAML parses an unquoted date."""
    return str(value) if isinstance(value, date | datetime) else value


def _conf_texts(value: Any) -> Any:
    """Convert numbers and booleans of JSON and YAML to text, the only type of a Spark setting."""
    if not isinstance(value, dict):
        return value
    return {key: str(item).lower() if isinstance(item, int | float) else item for key, item in value.items()}


SLUG_PATTERN: Final = r"^[a-z0-9]+(_[a-z0-9]+)*\Z"
SLUG_EXPECTED: Final = "a name of a-z, 0-9 and single _ between them, at most 100 characters"

Column = Annotated[str, Field(min_length=1, max_length=1000)]
Seconds = Annotated[UpToADay, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Token = Annotated[SecretStr, AfterValidator(check_token)]


def is_slug(text: str) -> bool:
    return len(text) <= 100 and re.match(SLUG_PATTERN, text) is not None  # noqa: PLR2004 - see SLUG_EXPECTED


class General(Group):
    state_path: str = Field(min_length=1, description="Folder of checkpoints, dead letters and the lease.")
    trigger_seconds: Seconds = Field(
        1, description="Longest wait for new commits; up to 1, a table in a local file system is polled more often."
    )
    shutdown_seconds: Seconds = Field(
        110,
        description="Time to finish running micro-batches at a reload and at a pause, and to stop on SIGTERM; keep it below the grace period of the process manager.",
    )
    routes_include: tuple[str, ...] | None = Field(
        None,
        description="Run these routes only; distributes routes over instances, each with a state path of its own.",
    )


class Table(Group):
    path: str | None = Field(None, min_length=1, description="Location of the Delta table (or NAME).")
    name: str | None = Field(None, min_length=1, description="Name of the Delta table in the catalog (or PATH).")
    keys: tuple[Column, ...] = Field(
        (),
        description="Columns that identify a row; needed by sinks that keep one entry per key.",
    )
    sinks: tuple[str, ...] = Field((), description="Sinks that follow the table; each makes a route <table>_<sink>.")
    starting_version: int | None = Field(
        None,
        ge=0,
        le=2**43,
        description="Deliver changes from this commit version on, and no snapshot. Default: first the current snapshot.",
    )
    starting_timestamp: Annotated[str | None, BeforeValidator(_timestamp_text)] = Field(
        None,
        description="Start by commit time instead, such as 2026-01-31T12:00:00Z; UTC unless it has an offset.",
    )
    max_files_per_trigger: int = Field(1000, gt=0, le=2**31 - 1, description="Most files read in one micro-batch.")
    max_bytes_per_trigger: str | None = Field(
        None,
        description="Approximate maximum of bytes read in one micro-batch, such as 256m.",
    )
    include_preimages: bool = Field(
        default=False,
        description="Append sinks also keep the image before an update; needed to fold changes of key columns.",
    )
    on_duplicate_keys: Literal["dead_letter", "halt"] = Field(
        "dead_letter",
        description="Handling of keys with several rows in the first load or a resync, in a sink that keeps one "
        "entry per key: dead_letter keeps each of these rows as a dead letter, up to MAX_REJECTED_SHARE.",
    )
    allow_schema_change: Annotated[int, Field(ge=0, le=2**43)] | Literal["always"] | None = Field(
        None,
        description="Approves the schema change that halted a route: the version in the route's message, or always.",
    )

    @field_validator("starting_version", mode="before")
    @classmethod
    def _not_latest(cls, value: Any) -> Any:
        if isinstance(value, str) and value.lower() == "latest":
            raise ValueError(
                "a commit version; 'latest' would lose changes committed while the service is down. "
                "Leave it out to start from the current snapshot",
            )
        return value

    @field_validator("starting_timestamp")
    @classmethod
    def _is_timestamp(cls, value: str | None) -> str | None:
        if value is not None and parse_timestamp(value) is None:
            raise ValueError("a date or time such as 2026-01-31, 2026-01-31 12:00:00 or 2026-01-31T12:00:00.123Z")
        return value

    @field_validator("max_bytes_per_trigger")
    @classmethod
    def _is_size(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"(?i)0*[1-9][0-9]{0,17}([kmgtp]?b?)", value):
            raise ValueError("a size above 0, such as 512k, 256m or 1g")
        return value


class RouteFields(Group):
    """Fields of a route that the service reads; every other field belongs to the sink's ``Options``."""

    table: str | None = Field(None, description="Table of a route that no table's SINKS makes.")
    sink: str | None = Field(None, description="Sink of a route that no table's SINKS makes.")
    keys: tuple[Column, ...] | None = Field(None, description="Key columns. Default: the table's.")
    filter: str | None = Field(
        None,
        min_length=1,
        description="SQL condition on the row; a row that stops matching is deleted from the sink.",
    )
    columns: tuple[Column, ...] | None = Field(None, min_length=1, description="Columns to deliver. Default: all.")
    rename: dict[Column, Column] = Field({}, description="Names in the sink: column=name,...")
    computed: Annotated[dict[Column, Annotated[str, Field(min_length=1)]], JsonObject()] = Field(
        {},
        description='Further columns of the row in the sink, as SQL: {"total": "price * quantity"}.',
    )
    schema_changes: Annotated[Literal["fail", "ignore", "add"], BeforeValidator(_lower), AnyCase()] = Field(
        "add",
        description="Columns added to the table later: deliver them (add), leave them out (ignore), or halt (fail).",
    )


Names = Annotated[dict[Column, Column], NamePairs()]


class Enrichment(Group):
    """A table that a route joins."""

    path: str | None = Field(None, min_length=1, description="Location of a Delta table to join (or NAME).")
    name: str | None = Field(None, min_length=1, description="Name in the catalog of a Delta table to join (or PATH).")
    on: Names = Field(
        min_length=1,
        description="Columns to join on: carrier, or carrier=code where the joined table names it otherwise.",
    )
    columns: Names = Field(min_length=1, description="Columns to add to the row: name, or name=carrier_name.")


class Http(Group):
    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on; :: is IPv6 and IPv4.")
    bind_port: int = Field(
        9102, ge=0, le=65_535, description="Port of metrics, probes and status page; 0 selects any free port."
    )
    token: Token | None = Field(
        None,
        min_length=1,
        description="Bearer token of the control endpoints; without a token they are off.",
    )
    read_token: Token | None = Field(
        None,
        min_length=1,
        description="Token of /metrics, /status and the page, as a bearer token or as the password of a browser; without a token they are open. The control token reads too.",
    )

    @property
    def read_tokens(self) -> tuple[str, ...]:
        """Return the tokens with which a caller may read; empty if every caller may."""
        if self.read_token is None:
            return ()
        return tuple(token.get_secret_value() for token in (self.read_token, self.token) if token is not None)


class Spark(Group):
    master: str = Field("local[*]", min_length=1, description="Spark master.")
    conf: Annotated[dict[str, str], BeforeValidator(_conf_texts), MayHoldSecrets()] = Field(
        {},
        repr=False,
        description="Further Spark settings, as a JSON object. A value that would change keys or lose changes is refused, such as "
        "`spark.sql.ansi.enabled=false`, `spark.sql.legacy.timeParserPolicy=LEGACY` or another time zone than UTC.",
    )
    jars: Path | None = Field(
        None,
        description="Folder with the Delta jars, sent to the executors of a cluster. Default: those in pyspark's own folder, which are not sent; else those fetched once into ~/.cache/cdf-replicator.",
    )


class Log(Group):
    level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower), AnyCase()] = Field(
        "info",
        description="Least severe level that is logged.",
    )
    format: Annotated[Literal["json", "text"] | None, BeforeValidator(_lower), AnyCase()] = Field(
        None,
        description="Default: text for a command and on a terminal, else json.",
    )


class Delivery(Group):
    retry_seconds: UpToADay = Field(
        30,
        ge=0,
        description="Time for retries of one write; after it the micro-batch fails and the route restarts with back-off.",
    )
    stall_seconds: UpToADay = Field(
        600,
        ge=1,
        description="Time without a finished task, while the source is ahead or a snapshot is loaded, after which a route is reported as stalled.",
    )
    max_rejected_share: Share = Field(
        0.01,
        description="Share of a micro-batch a sink may refuse (and always 100 rows); above it the route halts.",
    )
    max_removed_share: Share = Field(
        0.1,
        description="Share of a target's entries that a resync or a repair may remove; above it the route halts until a resync with "
        "--yes, and `verify --repair` writes nothing.",
    )


class Verify(Group):
    every_hours: Annotated[float, Field(gt=0, le=8760, allow_inf_nan=False)] | None = Field(
        None,
        description="Hours between two comparisons of each target with its table, beside the streams. Default: no comparisons.",
    )


FIXED_GROUPS: Final[dict[str, type[Group]]] = {
    "http": Http,
    "delivery": Delivery,
    "verify": Verify,
    "spark": Spark,
    "log": Log,
}
"""Groups that exist once; ``tables``, ``sinks`` and ``routes`` hold one group per slug."""
