"""Moments of a delivery, at which a fault is placed: before a route's state is saved, before a batch is written."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from cdf_replicator.pipeline.batch_writer import BatchWriter
from cdf_replicator.state.store import StateStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.oracle.targets import Entries, Folder, Index


class Moments:
    """Callbacks at fixed moments of one delivery. Each route waits for the callback."""

    def __init__(self) -> None:
        self.stop = threading.Event()

    @contextmanager
    def placed(self) -> Iterator[None]:
        def before(call: Callable[..., Any], moment: Callable[[Any], None]) -> Callable[..., Any]:
            def called(*arguments: Any, **named: Any) -> Any:
                moment(arguments)
                return call(*arguments, **named)

            return called

        save = before(StateStore.save, lambda arguments: self.saves(arguments[1].route))
        write = before(BatchWriter.write, lambda arguments: self.writes(arguments[0].route.name))
        with patch.object(StateStore, "save", save), patch.object(BatchWriter, "write", write):
            yield

    def saves(self, route: str) -> None:
        """A state of the route is about to be saved."""

    def writes(self, route: str) -> None:
        """A batch of the route is about to be written."""


class Interrupted(Moments):
    """Stops the service when a route begins its n-th batch. The running batches are finished."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.batch = batch
        self.begun: Counter[str] = Counter()

    def writes(self, route: str) -> None:
        self.begun[route] += 1
        if self.begun[route] >= self.batch:
            self.stop.set()


class LostWrites(Moments):
    """Every target is copied at one moment of its route, and goes back to the copy at a later one, at the latest at the end."""

    def __init__(self, targets: Mapping[str, Entries | Folder | Index], copied: int, lost: int) -> None:
        super().__init__()
        self.targets, self.copied, self.lost = targets, copied, lost
        self.reached: Counter[str] = Counter()
        self.copies: dict[str, Any] = {}

    def saves(self, route: str) -> None:
        if route not in self.targets:
            return
        self.reached[route] += 1
        if self.reached[route] == self.copied:
            self.copies[route] = self.targets[route].copy()
        elif self.reached[route] == self.lost:
            self._lose(route)

    writes = saves

    def end(self) -> None:
        for route in list(self.copies):
            self._lose(route)

    def _lose(self, route: str) -> None:
        self.targets[route].restore(self.copies.pop(route))
