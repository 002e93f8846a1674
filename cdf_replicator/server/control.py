"""Control endpoints: HTTP requests with a token are written to the command queue.

The route's thread executes each command; no handler reaches Spark or a sink.
"""

from __future__ import annotations

from contextlib import contextmanager
from threading import Semaphore
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Depends, HTTPException, Path, Request, status

from cdf_replicator.server import access
from cdf_replicator.server.commands import Accepted, Answer, Letters, Plain, Replay, Resync
from cdf_replicator.server.submissions import Submissions
from cdf_replicator.state import command_queue

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from cdf_replicator.monitoring.status_store import StatusStore
    from cdf_replicator.server.pages.actions import Submitted
    from cdf_replicator.state.store import StateStore

BODY_BYTES: Final = 10_000
AT_ONCE: Final = 4


class Control:
    """Access to the command queue.

    Args:
        token: bearer token that callers must send.
        routes: names of the routes that this instance runs; a reload replaces them.
        board: status that gets an event for each command.

    """

    def __init__(self, token: str, routes: Collection[str], board: StatusStore) -> None:
        self.token = token
        self.routes = routes
        self._state_path: StateStore | None = None
        self._turns = Semaphore(AT_ONCE)
        self._submissions = Submissions(board)

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
        self._submissions.add(request)
        return Accepted(id=request.id, follow=f"/requests/{request.id}")

    def follow(self, request_id: str) -> Answer | None:
        """Return the progress of a command; None if there is no such command."""
        with self._turn():
            folder = self.state_path.requests
            found = command_queue.read_status(folder, request_id)
            if found is not None:
                return Answer(state=found.state, message=found.message, ratio=found.ratio)
            return Answer(state="waiting") if command_queue.is_waiting(folder, request_id) else None

    def submitted(self, route: str) -> list[Submitted]:
        """Return the latest commands for a route that came over HTTP, newest first, with their progress."""
        return self._submissions.of(route, self.follow)

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


def _of_app(request: Request) -> Control:
    control: Control = request.app.state.control
    return control


Controlled = Annotated[Control, Depends(_of_app)]


def _authorized(control: Controlled, bearer: access.Bearer) -> None:
    access.require_control(bearer, [control.token])


def _known(control: Controlled, route: str) -> str:
    if route not in control.routes:
        raise HTTPException(status.HTTP_404_NOT_FOUND, f"No route {route}; the routes are {', '.join(control.routes)}.")
    return route


Named = Annotated[str, Depends(_known)]
router: Final = APIRouter(tags=["control"], dependencies=[Depends(_authorized)])


@router.post("/routes/{route}/pause", status_code=status.HTTP_202_ACCEPTED)
def pause(route: Named, control: Controlled) -> Accepted:
    """Stop delivering until the route is resumed, also across restarts."""
    return control.submit(Plain().command("pause", route))


@router.post("/routes/{route}/resume", status_code=status.HTTP_202_ACCEPTED)
def resume(route: Named, control: Controlled) -> Accepted:
    """Continue from where the route was paused."""
    return control.submit(Plain().command("resume", route))


@router.post("/routes/{route}/replay", status_code=status.HTTP_202_ACCEPTED)
def replay(route: Named, what: Replay, control: Controlled) -> Accepted:
    """Deliver changes again from a commit version on."""
    return control.submit(what.command("replay", route))


@router.post("/routes/{route}/resync", status_code=status.HTTP_202_ACCEPTED)
def resync(route: Named, what: Resync, control: Controlled) -> Accepted:
    """Rebuild the target from the newest snapshot of the source table, then remove entries that the table does not have."""
    return control.submit(what.command("resync", route))


@router.post("/routes/{route}/redrive", status_code=status.HTTP_202_ACCEPTED)
def redrive(route: Named, what: Letters, control: Controlled) -> Accepted:
    """Write the present rows of the keys of dead letters."""
    return control.submit(what.command("redrive", route))


@router.post("/routes/{route}/discard", status_code=status.HTTP_202_ACCEPTED)
def discard(route: Named, what: Letters, control: Controlled) -> Accepted:
    """Close dead letters without a write to the sink."""
    return control.submit(what.command("discard", route))


@router.post("/config/reload", status_code=status.HTTP_202_ACCEPTED)
def reload(control: Controlled) -> Accepted:
    """Read the configuration again, and start, stop or restart the routes whose settings differ."""
    return control.submit(command_queue.Command("reload"))


@router.get("/requests/{id}")
def follow(request_id: Annotated[str, Path(alias="id", pattern="^[0-9a-f]{32}$")], control: Controlled) -> Answer:
    """Return the progress of a command. An answer is kept for a day."""
    if (answer := control.follow(request_id)) is None:
        raise HTTPException(status.HTTP_404_NOT_FOUND, "No such request.")
    return answer
