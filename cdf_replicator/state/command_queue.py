"""The command queue: a file per command under the state path, and a file with its progress.

The lease holder executes every command that writes.
"""

from __future__ import annotations

import json
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from cdf_replicator.state.store import write_json

if TYPE_CHECKING:
    from cdf_replicator.state.storage_path import StoragePath

CommandKind = Literal["replay", "resync", "redrive", "discard", "repair", "pause", "resume", "reload"]
SWITCHES: Final = ("pause", "resume")
_COMMAND: Final = ".request.json"
_ANSWER: Final = ".progress.json"
KEPT_SECONDS: Final = 86_400


@dataclass(frozen=True, slots=True)
class Command:
    """A command for one route, or for the service.

    Args:
        kind: ``replay`` delivers from ``starting_version`` on, or up to ``ending_version`` (append sinks only). ``resync``
            starts a new epoch. ``redrive`` and ``discard`` close dead letters. ``repair`` writes ``identities`` again.
            ``pause`` and ``resume`` switch delivery. ``reload`` reads the configuration again.
        route: name of the route; empty for a reload.
        starting_version: first commit version of a replay.
        ending_version: last commit version of a replay; None continues with the stream.
        max_removed_share: share of the target's entries that a resync may remove; None uses the setting.
        letters: prefixes of dead letter ids; empty selects all open dead letters.
        identities: identities of the target's entries that a repair writes or deletes (``connectors.Verifiable``).
        dry_run: whether a reload is only planned.
        at: time of the command in epoch seconds.
        id: unique id of the command.

    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    kind: CommandKind
    route: str = ""
    starting_version: int | None = None
    ending_version: int | None = None
    max_removed_share: float | None = None
    letters: tuple[str, ...] = ()
    identities: tuple[str, ...] = ()
    dry_run: bool = False
    at: float = field(default_factory=time.time)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def title(self) -> str:
        """Return the name of the command, with the versions of a replay with an end."""
        if self.ending_version is None:
            return self.kind
        return f"{self.kind} of versions {self.starting_version} to {self.ending_version}"


_PARSER: Final = TypeAdapter(Command)


@dataclass(frozen=True, slots=True)
class CommandStatus:
    """Progress of a command: state, a message, and the share of its versions that is delivered.

    ``exit_code`` is that of a CLI which waits for a command that failed.
    """

    state: Literal["running", "done", "failed"]
    message: str = ""
    ratio: float = 0.0
    exit_code: int = 1


def enqueue(folder: StoragePath, command: Command) -> None:
    write_json(folder / f"{command.id}{_COMMAND}", asdict(command))


def pending(folder: StoragePath) -> list[Command]:
    """Return the commands in the queue, oldest first; answer an unreadable command as failed."""
    found: list[Command] = []
    for file in [*folder.glob(f"*{_COMMAND}")]:
        command_id = file.name.removesuffix(_COMMAND)
        try:
            command = _PARSER.validate_json(file.read_text("utf-8"))
            found.append(replace(command, id=command_id))
        except OSError:  # the file is incomplete or removed, or the store does not answer; the others are still read
            continue
        except ValueError as error:
            why = _problems(error) if isinstance(error, ValidationError) else str(error)  # else not UTF-8
            answer(folder, command_id, CommandStatus("failed", f"not a command that this version supports: {why}"))
    return sorted(found, key=lambda command: command.at)


def _problems(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())


def accept(folder: StoragePath, command: Command) -> None:
    """Accept a command; it stays in the queue until ``complete``, so that a restart finds it."""
    write_status(folder, command.id, CommandStatus("running", "accepted"))


def complete(folder: StoragePath, command_id: str) -> None:
    """Remove a command that is answered, or whose effect the state path records."""
    (folder / f"{command_id}{_COMMAND}").unlink(missing_ok=True)


def answer(folder: StoragePath, command_id: str, status: CommandStatus) -> None:
    """Write the last status of a command and remove the command."""
    write_status(folder, command_id, status)
    complete(folder, command_id)


def supersede(folder: StoragePath, command: Command) -> None:
    """Answer older commands to pause or resume the same route as failed, which a later service would execute after this one."""
    for older in pending(folder):
        if older.kind in SWITCHES and older.route == command.route and older.at < command.at:
            answer(folder, older.id, CommandStatus("failed", f"a later {command.kind} took its place"))


def write_status(folder: StoragePath, command_id: str, progress: CommandStatus) -> None:
    write_json(folder / f"{command_id}{_ANSWER}", asdict(progress))


def read_status(folder: StoragePath, command_id: str) -> CommandStatus | None:
    """Return the progress of a command; None if it is not accepted yet."""
    file = folder / f"{command_id}{_ANSWER}"
    return CommandStatus(**_read(file)) if file.exists() else None


def is_waiting(folder: StoragePath, command_id: str) -> bool:
    """Return whether the command is in the queue and not accepted yet."""
    return (folder / f"{command_id}{_COMMAND}").exists()


def answer_interrupted(folder: StoragePath) -> None:
    """Answer commands as failed that an earlier process accepted and recorded but did not answer before it ended."""
    for file in [*folder.glob(f"*{_ANSWER}")]:
        command_id = file.name.removesuffix(_ANSWER)
        with suppress(ValueError, TypeError, FileNotFoundError):
            found = CommandStatus(**_read(file))
            if found.state == "running" and not is_waiting(folder, command_id):
                what = (
                    f"the service was started again ({found.message}): it continues the command's work, see its status"
                )
                write_status(folder, command_id, replace(found, state="failed", message=what))


def purge_expired(folder: StoragePath) -> None:
    """Delete answers that are older than a day. The status of a running command stays until the command is answered."""
    for file in [*folder.glob(f"*{_ANSWER}")]:
        with suppress(OSError):
            if time.time() - file.modified_at() > KEPT_SECONDS and not _is_running(file):
                file.unlink(missing_ok=True)


def _is_running(file: StoragePath) -> bool:
    try:
        return CommandStatus(**_read(file)).state == "running"
    except (ValueError, TypeError):  # damaged
        return False


def delete(folder: StoragePath, command_id: str) -> None:
    for ending in (_COMMAND, _ANSWER):
        (folder / f"{command_id}{ending}").unlink(missing_ok=True)


def _read(file: StoragePath) -> dict[str, Any]:
    return dict(json.loads(file.read_text(encoding="utf-8")))
