"""Control endpoints: HTTP requests with a token are written to the command queue.

The route's thread executes each command; no handler reaches Spark or a sink.
"""

from __future__ import annotations

from contextlib import contextmanager
from threading import Semaphore
from typing import TYPE_CHECKING, Annotated, Final, Literal

from fastapi import APIRouter, Depends, HTTPException, Path, Request, status
from pydantic import BaseModel, ConfigDict, Field

from cdf_replicator.server import access
from cdf_replicator.state import command_queue

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from cdf_replicator.state.store import StateStore

BODY_BYTES: Final = 10_000
AT_ONCE: Final = 4


class Control:
    """Access to the command queue.

    Args:
        token: bearer token that callers must send.
        routes: names of the routes that this instance runs.

    """

    def __init__(self, token: str, routes: Collection[str]) -> None:
        self.token = token
        self.routes = routes
        self._state_path: StateStore | None = None
        self._turns = Semaphore(AT_ONCE)

    def open_to(self, state_path: StateStore) -> None:
        """Accept commands from now on, since this instance holds the lease."""
        self._state_path = state_path

    @property
    def state_path(self) -> StateStore:
        if self._state_path is None:
            raise HTTPException(status.HTTP_503_SERVICE_UNAVAILABLE, "This instance is starting or a standby.")
        return self._state_path

    def submit(self, request: command_queue.Command) -> Accepted:
        with self._turn():
            command_queue.enqueue(self.state_path.requests, request)
        return Accepted(id=request.id, follow=f"/requests/{request.id}")

    def follow(self, request_id: str) -> Answer | None:
        """Return the progress of a command; None if there is no such command."""
        with self._turn():
            folder = self.state_path.requests
            found = command_queue.read_status(folder, request_id)
            if found is not None:
                return Answer(state=found.state, message=found.message, ratio=found.ratio)
            return Answer(state="waiting") if command_queue.is_waiting(folder, request_id) else None

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Limit concurrent accesses, so that a store without answer does not block the probes' threads."""
        if not self._turns.acquire(blocking=False):
            raise HTTPException(status.HTTP_503_SERVICE_UNAVAILABLE, "Too many requests at once; repeat the request.")
        try:
            yield
        except OSError as error:
            raise HTTPException(status.HTTP_503_SERVICE_UNAVAILABLE, "The state path does not answer.") from error
        finally:
            self._turns.release()


class Replay(BaseModel):
    """Commit versions of the source table, both inclusive; ``ending_version`` is for append sinks only."""

    model_config = ConfigDict(extra="forbid")

    starting_version: int = Field(ge=0)
    ending_version: int | None = Field(None, ge=0)


class Accepted(BaseModel):
    """An accepted command; ``follow`` is the path of its progress."""

    id: str
    follow: str


class Answer(BaseModel):
    """Progress of a command; ``ratio`` is between 0 and 1."""

    state: Literal["waiting", "running", "done", "failed"]
    message: str = ""
    ratio: float = 0.0


def _of_app(request: Request) -> Control:
    control: Control = request.app.state.control
    return control


Controlled = Annotated[Control, Depends(_of_app)]


def _authorized(control: Controlled, bearer: access.Bearer) -> None:
    given = bearer.credentials if bearer else ""
    access.require(given, [control.token], variable="CDF_HTTP__TOKEN", challenge="Bearer")


def _known(control: Controlled, route: str) -> str:
    if route not in control.routes:
        raise HTTPException(status.HTTP_404_NOT_FOUND, f"No route {route}; the routes are {', '.join(control.routes)}.")
    return route


Named = Annotated[str, Depends(_known)]
router: Final = APIRouter(tags=["control"], dependencies=[Depends(_authorized)])


@router.post("/routes/{route}/pause", status_code=status.HTTP_202_ACCEPTED)
def pause(route: Named, control: Controlled) -> Accepted:
    """Stop delivering until the route is resumed, also across restarts."""
    return control.submit(command_queue.Command("pause", route))


@router.post("/routes/{route}/resume", status_code=status.HTTP_202_ACCEPTED)
def resume(route: Named, control: Controlled) -> Accepted:
    """Continue from where the route was paused."""
    return control.submit(command_queue.Command("resume", route))


@router.post("/routes/{route}/replay", status_code=status.HTTP_202_ACCEPTED)
def replay(route: Named, what: Replay, control: Controlled) -> Accepted:
    """Deliver changes again from a commit version on."""
    return control.submit(command_queue.Command("replay", route, what.starting_version, what.ending_version))


@router.get("/requests/{id}")
def follow(request_id: Annotated[str, Path(alias="id", pattern="^[0-9a-f]{32}$")], control: Controlled) -> Answer:
    """Return the progress of a command. An answer is kept for a day."""
    if (answer := control.follow(request_id)) is None:
        raise HTTPException(status.HTTP_404_NOT_FOUND, "No such request.")
    return answer
