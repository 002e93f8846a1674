"""Define the actions on a route, the bodies of their endpoints, which are also the fields of the forms, and their answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from cdf_replicator.state.command_queue import Command

if TYPE_CHECKING:
    from cdf_replicator.state.command_queue import CommandKind

VERIFY: Final = "verify"
"""The action that writes nothing, so that it is no command of the queue."""
Action: TypeAlias = "CommandKind | Literal['verify']"


def _words(value: Any) -> Any:
    """Return the words of a text, which a form sends; commas and spaces separate them."""
    return value.replace(",", " ").split() if isinstance(value, str) else value


class Plain(BaseModel):
    """A command without parameters."""

    model_config = ConfigDict(extra="forbid")

    def command(self, kind: CommandKind, route: str) -> Command:
        """Return the command for a route."""
        return Command(kind, route, **self.model_dump())


class Replay(Plain):
    """Commit versions of the source table, both inclusive; ``ending_version`` is for append sinks only."""

    starting_version: int = Field(ge=0)
    ending_version: int | None = Field(None, ge=0)

    @field_validator("ending_version")
    @classmethod
    def _not_before_start(cls, value: int | None, info: ValidationInfo) -> int | None:
        start = info.data.get("starting_version")
        if value is not None and start is not None and value < start:
            raise ValueError(f"{value} is before {start}")
        return value


class Resync(Plain):
    """The largest share of the target's entries that may be removed; the setting if it is absent."""

    max_removed_share: float | None = Field(None, ge=0, le=1)


class Letters(Plain):
    """The first characters of the ids of dead letters; all open dead letters of the route if there are none."""

    letters: Annotated[
        tuple[Annotated[str, Field(pattern="^[0-9a-f]{6,64}$")], ...],
        BeforeValidator(_words, json_schema_input_type=list[str]),
    ] = ()


BODIES: Final[dict[Action, type[Plain]]] = {
    "pause": Plain,
    "resume": Plain,
    "replay": Replay,
    "resync": Resync,
    "redrive": Letters,
    "discard": Letters,
    VERIFY: Plain,
}


class Accepted(BaseModel):
    """An accepted command or comparison; ``follow`` is the path of its progress."""

    id: str
    follow: str


class Answer(BaseModel):
    """Progress of a command or a comparison; ``ratio`` is between 0 and 1."""

    state: Literal["waiting", "running", "done", "failed"]
    message: str = ""
    ratio: float = 0.0
