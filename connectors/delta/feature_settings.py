"""Define the settings of a sink of feature tables, and the options of its routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from connectors.delta.sink import DeltaSettings
from connectors.settings import RouteOptions

if TYPE_CHECKING:
    from typing_extensions import Self


class DeltaFeaturesSettings(DeltaSettings):
    path: str = Field(min_length=1, description="Folder; each route gets the Delta table <PATH>/<route name>.")


class DeltaFeaturesOptions(RouteOptions):
    entity: tuple[str, ...] = Field(
        min_length=1, description="Columns of the source that identify an entity: one row of the table each."
    )
    aggregates: dict[str, str] = Field(
        min_length=1, description='SQL aggregates by column: {"total": "sum(amount)"}. Resync after a change.'
    )

    @model_validator(mode="after")
    def _columns_are_distinct(self) -> Self:
        names = [name.lower() for name in (*self.entity, *self.aggregates)]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(
                f"each column once in entity and aggregates (case does not count), but {twice} occurs twice"
            )
        return self
