"""Base classes of what an operator configures: the settings of a sink and its options per route."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field, field_validator

UpToADay = Annotated[float, Field(le=86_400, allow_inf_nan=False)]
"""A number of seconds that every clock and every client library accepts."""
METRICS: Final = ("cosine", "l2", "ip")
Vectors = dict[str, "tuple[int, str | None]"]
"""The dimension of each vector column, and the metric of its index if it has one."""


class SinkSettings(BaseModel):
    """Base of every sink's ``Settings``: frozen, and an unknown option is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    type: str


class ArrowSettings(SinkSettings):
    """Bounds of one ``write``; the first bound that is reached counts. Back-pressure lowers them for a while."""

    chunk_rows: int = Field(5000, ge=1, le=10_000, description="most changes in one request")
    chunk_bytes: int = Field(
        8_000_000,
        ge=1_000,
        description="most bytes in one request, about; a larger request needs a larger "
        "`spark.sql.execution.arrow.maxBytesPerBatch` (7500000) in `CDF_SPARK__CONF`",
    )
    rows_per_second: int | None = Field(
        None, ge=1, description="most changes a second to this server, of all routes of one machine (default: no limit)"
    )


class RouteOptions(BaseModel):
    """Options of a route for its sink (``CDF_ROUTES__<ROUTE>__<OPTION>``). A sink without a subclass has none."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    def entry_names(self, table: str, keys: tuple[str, ...]) -> str | None:  # noqa: ARG002 - for an override
        """Return how the names of entries are built, if options can change them within the same target; else None.

        The text is part of the route's identity, since a change of the names leaves the entries of the former names behind.
        """
        return None


class VectorOptions(RouteOptions):
    """Options of a route to a sink that keeps vectors of at most ``largest_vector`` numbers."""

    largest_vector: ClassVar[int]

    vectors: str = Field(
        "",
        description="array<float> columns to keep as vectors, each with its dimension and, for an HNSW index, a metric "
        f"({', '.join(METRICS)}): embedding:256:cosine,title:64",
    )

    @field_validator("vectors")
    @classmethod
    def _vectors_are_understood(cls, text: str) -> str:
        parse_vectors(text, cls.largest_vector)
        return text

    @property
    def parsed_vectors(self) -> Vectors:
        return parse_vectors(self.vectors, self.largest_vector)


def parse_vectors(text: str, largest: int) -> Vectors:
    """Parse ``embedding:256:cosine,title:64``; raises ``ValueError``."""
    parsed: Vectors = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        column, _, rest = part.partition(":")
        dimension, _, metric = rest.partition(":")
        wrong = not column or not dimension.isdigit() or not 0 < int(dimension) <= largest
        if wrong or (metric and metric not in METRICS):
            raise ValueError(
                f"expected column:dimension or column:dimension:metric ({', '.join(METRICS)}) of at most {largest} numbers, "
                f"not {part!r}"
            )
        parsed[column] = int(dimension), metric or None
    return parsed
