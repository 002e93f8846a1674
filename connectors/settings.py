"""Base classes of what an operator configures: the settings of a sink and its options per route."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class SinkSettings(BaseModel):
    """Base of every sink's ``Settings``: frozen, and an unknown option is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    type: str


class ArrowSettings(SinkSettings):
    """Bounds of one ``write``; the first bound that is reached counts. Back-pressure lowers them for a while."""

    chunk_rows: int = Field(5000, ge=1, le=10_000, description="most changes in one request")
    chunk_bytes: int = Field(8_000_000, ge=1_000, description="most bytes in one request, about")
    rows_per_second: int | None = Field(
        None, ge=1, description="most changes a second to this server, of all routes of one machine (default: no limit)"
    )


class RouteOptions(BaseModel):
    """Options of a route for its sink (``CDF_ROUTES__<ROUTE>__<OPTION>``). A sink without a subclass has none."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
