"""Has requests carried out: by whoever holds the lease, or here if nobody does; shows how far they are."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.prompt import Confirm

from cdf_replicator import lease, requests, service
from cdf_replicator.lease import LeaseHeldError
from cdf_replicator.state import StateError, StatePath

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cdf_replicator.route import Route
    from cdf_replicator.settings import Settings

log = structlog.get_logger(__name__)

USAGE: Final = 2
"""Exit code of a command that was not confirmed."""
POLL_SECONDS: Final = 0.3
LINE_SECONDS: Final = 5.0


def confirmed(question: str, *, yes: bool) -> bool:
    if yes:
        return True
    if not sys.stdin.isatty():
        log.error("not a terminal, so nobody can be asked: add --yes")
        return False
    return Confirm.ask(question, console=Console(stderr=True), default=False)


def carry_out(settings: Settings, routes: Sequence[Route], asked: Sequence[requests.Request]) -> int:
    """Leave the requests; do the work here if nobody holds the lease, else follow the one who does."""
    try:
        folder = StatePath.open(Path(settings.state_path)).requests
    except StateError as error:
        log.error(str(error))  # noqa: TRY400 - the sentence says it all
        return service.EXIT_CONFIGURATION
    for request in asked:
        requests.submit(folder, request)
    own = replace(settings, http=settings.http.model_copy(update={"bind_port": 0}))
    following = threading.Event()
    follower = threading.Thread(target=_show, args=(folder, asked, following), daemon=True)
    follower.start()
    try:
        code = service.Supervisor(own, once=True).run(routes, {})
    except LeaseHeldError as error:
        log.info("the running service carries it out; interrupting this command does not stop it")
        code = _wait(Path(settings.state_path), error.holder, folder, asked)
    finally:
        following.set()
        follower.join()
    outcomes = {request.route: requests.follow(folder, request.id) for request in asked}
    for request in asked:
        requests.forget(folder, request.id)
    failed = {route: outcome for route, outcome in outcomes.items() if outcome is None or outcome.state != "done"}
    for route, outcome in failed.items():
        log.error("not carried out", route=route, why=_why(outcome))
    return code or (service.EXIT_FAILED if failed else service.EXIT_DONE)


def _wait(root: Path, holder: Mapping[str, Any], folder: Path, asked: Sequence[requests.Request]) -> int:
    """Until all is answered, or the one who was asked has gone; returns the exit code."""
    while any((found := requests.follow(folder, request.id)) is None or found.state == "running" for request in asked):
        if lease.holder(root) != holder:
            return service.EXIT_TEMPORARY
        time.sleep(POLL_SECONDS)
    return service.EXIT_DONE


def _why(outcome: requests.Progress | None) -> str:
    if outcome is None:
        return "nobody took it on; ask again"
    if outcome.state == "running":
        return f"interrupted ({outcome.message}); what was begun goes on when the service runs, see its status"
    return outcome.message


def _show(folder: Path, asked: Sequence[requests.Request], done: threading.Event) -> None:
    """A bar a route on a terminal; else a line now and then."""
    if not sys.stderr.isatty():
        told: dict[str, str] = {}
        while not done.wait(LINE_SECONDS):
            for request in asked:
                found = requests.follow(folder, request.id)
                if found is not None and told.get(request.id) != found.message:
                    told[request.id] = found.message
                    log.info("progress", route=request.route, percent=round(found.ratio * 100), what=found.message)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[what]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks = {request.id: bars.add_task(request.route, total=1.0, what="waiting") for request in asked}
        while True:
            ended = done.wait(POLL_SECONDS)
            for request_id, task in tasks.items():
                found = requests.follow(folder, request_id)
                if found is not None:
                    bars.update(task, completed=found.ratio, what=found.message)
            if ended:
                return
