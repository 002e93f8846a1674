"""Control endpoints: HTTP requests with a token are written to the command queue.

The route's thread executes each command, and the thread of the comparisons each comparison; no handler reaches Spark or a sink.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from threading import Semaphore
from typing import TYPE_CHECKING, Annotated, Final, Protocol

from fastapi import APIRouter, Depends, HTTPException, Path, Request, status

from cdf_replicator.errors.exceptions import ComparisonRefusedError
from cdf_replicator.server import access
from cdf_replicator.server.commands import VERIFY, Accepted, Answer, Letters, Plain, Replay, Resync
from cdf_replicator.server.submissions import Submissions
from cdf_replicator.state import command_queue

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from cdf_replicator.monitoring.status_store import StatusStore
    from cdf_replicator.server.commands import Action
    from cdf_replicator.server.pages.actions import Submitted
    from cdf_replicator.state.store import StateStore

BODY_BYTES: Final = 10_000
AT_ONCE: Final = 4
NOT_ACTIVE: Final = "This instance is starting or a standby."


class Comparisons(Protocol):
    """Compares the targets of routes on request."""

    def submit(self, route: str) -> str:
        """Request a comparison and return its id; raise ``ComparisonRefusedError``."""

    def follow(self, request_id: str) -> command_queue.CommandStatus | None:
        """Return the progress or the result of a request; None if it is unknown."""


class Control:
    """Access to the command queue and to the comparisons of targets.

    Args:
        token: bearer token that callers must send.
        routes: names of the routes that this instance runs; a reload replaces them.
        board: status that gets an event for each command.

    ``comparisons`` is None until this instance runs routes.
    """

    def __init__(self, token: str, routes: Collection[str], board: StatusStore) -> None:
        self.token = token
        self.routes = routes
        self.comparisons: Comparisons | None = None
        self._state_path: StateStore | None = None
        self._turns = Semaphore(AT_ONCE)
        self._views = Semaphore(AT_ONCE)
        self._submissions = Submissions(board)

    def open_to(self, state_path: StateStore) -> None:
        """Accept commands from now on, since this instance holds the lease."""
        self._state_path = state_path

    @property
    def state_path(self) -> StateStore:
        if self._state_path is None:
            raise HTTPException(status.HTTP_503_SERVICE_UNAVAILABLE, NOT_ACTIVE)
        return self._state_path

    def execute(self, action: Action, route: str, what: Plain) -> Accepted:
        """Start an action on a route."""
        return self.verify(route) if action == VERIFY else self.submit(what.command(action, route))

    def submit(self, request: command_queue.Command) -> Accepted:
        with self._turn(self._turns):
            command_queue.enqueue(self.state_path.requests, request)
        return self._accepted(request.id, request.route, request.kind)

    def verify(self, route: str) -> Accepted:
        if self.comparisons is None:
            raise HTTPException(status.HTTP_503_SERVICE_UNAVAILABLE, NOT_ACTIVE)
        try:
            return self._accepted(self.comparisons.submit(route), route, VERIFY)
        except ComparisonRefusedError as error:
            raise HTTPException(status.HTTP_409_CONFLICT, str(error)) from error

    def follow(self, request_id: str) -> Answer | None:
        """Return the progress of a command or a comparison; None if there is none of this id."""
        return self._follow(request_id, self._turns)

    def submitted(self, route: str) -> list[Submitted]:
        """Return the latest commands for a route that came over HTTP, newest first, with their progress."""
        return self._submissions.of(route, partial(self._follow, turns=self._views))

    def _accepted(self, request_id: str, route: str, action: Action) -> Accepted:
        self._submissions.add(request_id, route, action)
        return Accepted(id=request_id, follow=f"/requests/{request_id}")

    def _follow(self, request_id: str, turns: Semaphore) -> Answer | None:
        found = self.comparisons.follow(request_id) if self.comparisons else None
        if found is None:
            with self._turn(turns):
                folder = self.state_path.requests
                found = command_queue.read_status(folder, request_id)
                if found is None:
                    return Answer(state="waiting") if command_queue.is_waiting(folder, request_id) else None
        return Answer(state=found.state, message=found.message, ratio=found.ratio)

    @contextmanager
    def _turn(self, turns: Semaphore) -> Iterator[None]:
        """Limit concurrent accesses, so that a store without answer does not block the probes' threads.

        Views of pages have turns of their own, so that they take none from an operator's command.
        """
        if not turns.acquire(blocking=False):
            raise HTTPException(status.HTTP_503_SERVICE_UNAVAILABLE, "Too many requests at once; repeat the request.")
        try:
            yield
        except OSError as error:
            raise HTTPException(status.HTTP_503_SERVICE_UNAVAILABLE, "The state path does not answer.") from error
        finally:
            turns.release()


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


@router.post("/routes/{route}/verify", status_code=status.HTTP_202_ACCEPTED)
def verify(route: Named, control: Controlled) -> Accepted:
    """Compare the target with the source table, one comparison at a time in the service; 409 while another runs."""
    return control.verify(route)


@router.post("/config/reload", status_code=status.HTTP_202_ACCEPTED)
def reload(control: Controlled) -> Accepted:
    """Read the configuration again, and start, stop or restart the routes whose settings differ."""
    return control.submit(command_queue.Command("reload"))


@router.get("/requests/{id}")
def follow(request_id: Annotated[str, Path(alias="id", pattern="^[0-9a-f]{32}$")], control: Controlled) -> Answer:
    """Return the progress of a command, which is kept for a day, or of a comparison, which is kept in memory."""
    if (answer := control.follow(request_id)) is None:
        raise HTTPException(status.HTTP_404_NOT_FOUND, "No such request.")
    return answer
