"""Show the finished tasks of a query on a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cdf_replicator.queries.answer import Failure, Progress, Values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdf_replicator.queries.answer import Event


def without_progress(events: Iterator[Event], title: str) -> Iterator[Values | Failure]:
    """Yield the values and the error; show a bar on stderr until the first of them, if stderr is a terminal.

    Spark plans one stage after another, so that the bar counts the tasks of the stages that run now.
    """
    first = _awaited(events, title) if sys.stderr.isatty() else next(events, None)
    while first is not None:
        if isinstance(first, Values | Failure):
            yield first
        first = next(events, None)


def _awaited(events: Iterator[Event], title: str) -> Event | None:
    """Show the progress; return the first other event."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[what]}"), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task(title, total=None, what="")
        for event in events:
            if not isinstance(event, Progress):
                return event
            what = f"{event.done} of {event.tasks} tasks" if event.tasks else ""
            bars.update(bar, total=event.tasks or None, completed=event.done, what=what)
    return None
