"""Define the queries of commands that only read. A command starts without Spark, so this module does not import it."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from cdf_replicator.queries.answer import Finding, ReplayPlan, ResyncPlan

LetterId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{6,64}$")]
Version = Annotated[int, Field(ge=0)]


class QueryRefusedError(Exception):
    """The service does not answer the query. With ``for_now`` it may answer it later."""

    def __init__(self, reason: str, *, for_now: bool = False) -> None:
        super().__init__(reason)
        self.for_now = for_now


class Query(BaseModel):
    """A query.

    Args:
        configuration: The digest of the settings on which the answer depends (``configuration.digest``). Another
            configuration refuses the query. If it is empty, any configuration answers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: ClassVar[str]

    configuration: str = ""

    @classmethod
    def value_type(cls) -> Any:
        """Return the type of each value of the answer."""
        return dict[str, Any]

    @property
    def concerned(self) -> tuple[str, ...] | None:
        """Return the routes on whose settings the answer depends; None for all settings."""
        return ()


class ListDeadLetters(Query):
    """Dead letters without their rows, newest first.

    Args:
        route: Name of a route; None for all routes.
        closed: Whether to list closed dead letters too.
        limit: Largest number of values.
        rows: Whether each value holds its row, as JSON text.
    """

    name = "dead-letters"

    route: str | None = None
    closed: bool = False
    limit: int = Field(50, ge=1)
    rows: bool = False


class ShowDeadLetter(Query):
    """The dead letters whose id begins with ``id``, two at most, with their rows."""

    name = "dead-letter"

    id: LetterId


class ReadChanges(Query):
    """The changes of a table in the order of versions: the column names first, then a value for each row.

    Args:
        table: The table's slug, or what the operator named it by.
        path: Location of the table.
        catalog_name: Name of the table in the catalog.
        first: First commit version, or a timestamp as text.
        last: Last commit version, or a timestamp as text. None selects the newest version.
        keys: Key columns. They order the rows of a version.
        key: Key text by the columns ``keys``. None selects every key.
        limit: Largest number of rows.
        format: The form of a value: a line of text, or with ``table`` the texts of the cells.
    """

    name = "changes"

    table: str
    path: str | None = None
    catalog_name: str | None = None
    first: int | str
    last: int | str | None = None
    keys: tuple[str, ...] = ()
    key: str | None = None
    limit: int | None = None
    format: Literal["table", "json", "csv"] = "table"

    @classmethod
    def value_type(cls) -> Any:
        return str | list[str]


class PlanReplay(Query):
    """The changes that a replay would deliver again: a value for each source table of the routes."""

    name = "replay-plan"

    routes: tuple[str, ...] = Field(min_length=1)
    starting_version: Version
    ending_version: Version | None = None

    @classmethod
    def value_type(cls) -> Any:
        return ReplayPlan

    @property
    def concerned(self) -> tuple[str, ...]:
        return self.routes


class PlanResync(Query):
    """The rows that a resync would write, and the entries that it would remove: one value."""

    name = "resync-plan"

    route: str

    @classmethod
    def value_type(cls) -> Any:
        return ResyncPlan

    @property
    def concerned(self) -> tuple[str, ...]:
        return (self.route,)


class Verify(Query):
    """The comparison of a route's target with its table: one value (see ``verification.verify``)."""

    name = "verification"

    route: str
    at: Version | None = None
    columns: tuple[str, ...] = ()
    limit: int = Field(20, ge=0)

    @classmethod
    def value_type(cls) -> Any:
        from cdf_replicator.verification.result import Verification  # its package imports Spark

        return Verification

    @property
    def concerned(self) -> tuple[str, ...]:
        return (self.route,)


class Validate(Query):
    """The problems of the tables and of the sinks, a value each."""

    name = "validation"

    @classmethod
    def value_type(cls) -> Any:
        return Finding

    @property
    def concerned(self) -> None:
        return None


QUERIES: Final[dict[str, type[Query]]] = {
    each.name: each for each in (ListDeadLetters, ShowDeadLetter, ReadChanges, PlanReplay, PlanResync, Verify, Validate)
}
