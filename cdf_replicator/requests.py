"""What another command asks of the lease holder: a file under the state path, and a file that answers.

Whoever holds the lease carries out every command that writes (design rule 14).
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence  # noqa: TC003 - pydantic reads it
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from cdf_replicator.state import write_json

if TYPE_CHECKING:
    from pathlib import Path

    from cdf_replicator.remote_path import RemotePath

Kind = Literal["replay", "resync", "redrive", "discard", "pause", "resume"]
_ASKED: Final = ".request.json"
_ANSWER: Final = ".progress.json"
KEPT_SECONDS: Final = 86_400


@dataclass(frozen=True, slots=True)
class Request:
    """``replay``: from ``starting_version`` on, or to ``ending_version`` (append sinks). ``resync``: a new epoch.

    ``redrive``, ``discard``: of the route's dead letters. ``pause``, ``resume``: whether the route delivers at all.
    ``max_removed_share``: of the target's entries, that a resync may remove; None leaves it to the settings. ``letters``: what their ids begin with; none names all that are open. ``at``: when it
    was asked, epoch seconds.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    kind: Kind
    route: str
    starting_version: int | None = None
    ending_version: int | None = None
    max_removed_share: float | None = None
    letters: Sequence[str] = ()
    at: float = field(default_factory=time.time)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


_REQUEST: Final = TypeAdapter(Request)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a request is: versions delivered of those asked for, and a message for people."""

    state: Literal["running", "done", "failed"]
    message: str = ""
    ratio: float = 0.0


def submit(folder: Path | RemotePath, request: Request) -> None:
    write_json(folder / f"{request.id}{_ASKED}", asdict(request))


def pending(folder: Path | RemotePath) -> list[Request]:
    """Return the requests that have not been settled, oldest first. One that can't be understood is answered so."""
    found: list[Request] = []
    for file in [*folder.glob(f"*{_ASKED}")]:
        request_id = file.name.removesuffix(_ASKED)
        try:
            request = _REQUEST.validate_json(file.read_bytes())
            found.append(replace(request, letters=tuple(request.letters), id=request_id))
        except OSError:  # its asker has gone, or no file can be read there: that is no reason to pass over the others
            continue
        except ValidationError as error:
            why = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            answer(folder, request_id, Progress("failed", f"not a request that this version understands: {why}"))
            settle(folder, request_id)
    return sorted(found, key=lambda request: request.at)


def take(folder: Path | RemotePath, request: Request) -> None:
    """Accept a request: it stays until it is settled, so that a restart finds it."""
    answer(folder, request.id, Progress("running", "accepted"))


def settle(folder: Path | RemotePath, request_id: str) -> None:
    """What was asked is written down where it outlives a restart, or is answered for good."""
    (folder / f"{request_id}{_ASKED}").unlink(missing_ok=True)


def answer(folder: Path | RemotePath, request_id: str, progress: Progress) -> None:
    write_json(folder / f"{request_id}{_ANSWER}", asdict(progress))


def follow(folder: Path | RemotePath, request_id: str) -> Progress | None:
    """Return how far a request is; None while nobody has taken it."""
    file = folder / f"{request_id}{_ANSWER}"
    return Progress(**_read(file)) if file.exists() else None


def is_waiting(folder: Path | RemotePath, request_id: str) -> bool:
    """Whether there is such a request that nobody has taken yet."""
    return (folder / f"{request_id}{_ASKED}").exists()


def answer_interrupted(folder: Path | RemotePath) -> None:
    """Answer what an earlier process had taken up and written down, and then did not live to answer."""
    for file in [*folder.glob(f"*{_ANSWER}")]:
        request_id = file.name.removesuffix(_ANSWER)
        with suppress(ValueError, TypeError, FileNotFoundError):
            found = Progress(**_read(file))
            if found.state == "running" and not is_waiting(folder, request_id):
                what = f"the service has been started again meanwhile ({found.message}): what was begun goes on, see its status"
                answer(folder, request_id, replace(found, state="failed", message=what))


def tidy(folder: Path | RemotePath) -> None:
    """Drop answers that nobody came back for within a day."""
    for file in [*folder.glob(f"*{_ANSWER}")]:
        with suppress(OSError):
            if time.time() - file.stat().st_mtime > KEPT_SECONDS:
                file.unlink(missing_ok=True)


def forget(folder: Path | RemotePath, request_id: str) -> None:
    for ending in (_ASKED, _ANSWER):
        (folder / f"{request_id}{ending}").unlink(missing_ok=True)


def _read(file: Path | RemotePath) -> dict[str, Any]:
    return dict(json.loads(file.read_text(encoding="utf-8")))
