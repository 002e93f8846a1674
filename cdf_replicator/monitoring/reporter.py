"""Report the events of a route to the status store and the log with one call each."""

from __future__ import annotations

import math
import re
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

import structlog

from cdf_replicator.monitoring.metrics.latency import delivery_latencies
from cdf_replicator.monitoring.totals import PHASES, BatchStatus
from connectors.change import KEY_CODES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cdf_replicator.delivery import DeliveryResult
    from cdf_replicator.errors.exceptions import ErrorDecision
    from cdf_replicator.monitoring.metrics import Metrics
    from cdf_replicator.monitoring.status import State
    from cdf_replicator.monitoring.totals import BatchOutcome
    from cdf_replicator.route import Route
    from connectors import Sink

log = structlog.get_logger(__name__)

AGAIN_SECONDS: Final = 60
"""Minimum time between log entries of a repeated failure. The status counts each repetition."""
_ID: Final = re.compile(r"(?=[^\s\d]*\d)[\w/+=-]{16,}")
"""A long word with a digit, such as the id of a request, which an object store puts into each error."""
PLANNING: Final = "planning"
"""Phase before a micro-batch is passed to the route; Spark reports its duration afterwards."""
MOST_KEYS: Final = 3
"""Maximum number of keys of rejected rows in a log entry."""


class RouteReporter:
    """The reporter of one route, called by the route's thread and by the thread of its query.

    ``sink`` is the class of the route's sink.
    """

    def __init__(self, route: Route, metrics: Metrics, sink: type[Sink]) -> None:
        self._route = route.name
        self._sink = route.sink
        self._metrics = metrics
        self._board = metrics.board
        self._log = log.bind(route=route.name, table=route.source.slug, sink=route.sink)
        self._said: dict[tuple[str, str], float] = {}
        self._labels = labels = (route.name, route.source.slug, route.sink)
        self._phases = {phase: metrics.batch_duration.labels(*labels, phase) for phase in (PLANNING, *PHASES)}
        self._duration = metrics.micro_batch_duration.labels(*labels)
        self._latency = metrics.delivery_latency.labels(*labels)
        self._request_duration = metrics.request_duration.labels(route.sink)
        codes = (*sink.capabilities.rejection_codes, *(KEY_CODES if sink.mode == "upsert" else ()))
        self._board.add_route(*labels, codes)

    def remove(self) -> None:
        """Remove the route's row, and its series from the metrics."""
        self._metrics.remove_route(*self._labels, phases=(PLANNING, *PHASES))

    def state(self, state: State, reason: str = "") -> None:
        self._board.state(self._route, state, reason)
        if self._should_log(state, reason):
            self._log.info("route state", state=state, reason=reason or None)
        if state == "running":
            self._said.clear()

    def event(self, what: str) -> None:
        self._board.event(what, self._route)
        self._log.info(what)

    def warning(self, what: str) -> None:
        self._board.event(what, self._route)
        self._log.warning(what)

    def checkpoint_location(self, generation: int, epoch: int, checkpoint: str) -> None:
        self._board.update(self._route, generation=generation, epoch=epoch, checkpoint=checkpoint)

    def versions(self, source: int, delivered: int, oldest_undelivered: float | None) -> None:
        """Report the position of the route.

        Args:
            source: Newest commit version of the source table.
            delivered: Version up to which all changes are delivered.
            oldest_undelivered: Time of the oldest undelivered commit in epoch seconds; None if all are delivered.
        """
        at = None if oldest_undelivered is None else datetime.fromtimestamp(oldest_undelivered, timezone.utc)
        self._board.update(
            self._route, source_version=source, delivered_version=delivered, oldest_undelivered_commit_at=at
        )

    def headroom(self, seconds: float, versions: int) -> None:
        """Report the seconds and versions until Delta may remove data that the route has not read."""
        self._board.update(self._route, headroom_seconds=seconds, headroom_versions=versions)

    def rates(self, input_rows: float, processed_rows: float) -> None:
        self._board.update(self._route, input_rows_per_second=input_rows, processed_rows_per_second=processed_rows)

    def planning(self, seconds: float) -> None:
        """Report how long Spark planned a micro-batch before it was delivered."""
        self._phases[PLANNING].observe(seconds)

    def bootstrap(self, ratio: float) -> None:
        """Report the progress of a snapshot's load. Ratio 1 ends it."""
        self._board.update(self._route, bootstrap_progress=ratio)

    def dead_letters(self, count: int) -> None:
        self._board.update(self._route, dead_letters=count)

    def requests(self, outcome: DeliveryResult) -> None:
        """Report the requests and retries of a micro-batch, whether it succeeded or failed."""
        for duration in outcome.request_seconds:
            self._request_duration.observe(duration)
        self._board.requests(self._route, outcome.request_seconds, outcome.retries, outcome.sent_bytes)

    def batch(
        self,
        number: int,
        outcome: DeliveryResult,
        *,
        versions: tuple[int, int] | None,
        seconds: Mapping[str, float],
        ended: BatchOutcome,
        followed_since: float = math.inf,
    ) -> None:
        """Report a micro-batch that ended.

        Args:
            number: Spark's batch id.
            outcome: Counts and dead letters of the delivery.
            versions: First and last commit version; None if not known.
            seconds: Duration by phase.
            ended: Result of the micro-batch.
            followed_since: Time in epoch seconds from which on commits are timed until their delivery.
        """
        for phase, duration in seconds.items():
            self._phases[phase].observe(duration)
        self._duration.observe(sum(seconds.values()))
        now, latencies = datetime.now(timezone.utc), list[float]()
        if ended == "delivered":
            latencies = delivery_latencies(versions, outcome.commit_times, since=followed_since, now=now.timestamp())
            for latency in latencies:
                self._latency.observe(latency)
        batch = BatchStatus(
            batch_id=number,
            versions=versions,
            received=dict(outcome.received),
            seconds=dict(seconds),
            outcome=ended,
            at=now,
            applied=dict(outcome.applied),
            stale=outcome.stale,
            noop=outcome.noop,
            rejected=dict(outcome.rejected),
            latency_seconds=max(latencies, default=None),
        )
        self._board.batch(self._route, batch)
        self._log.info(
            "batch " + ended,
            batch_id=number,
            versions=f"{versions[0]}-{versions[1]}" if versions else None,
            received=batch.rows,
            applied=sum(outcome.applied.values()),
            superseded=batch.superseded,
            stale=outcome.stale,
            noop=outcome.noop,
            rejected=sum(outcome.rejected.values()),
            seconds=round(sum(seconds.values()), 3),
        )
        if ended == "delivered" and outcome.letters:
            self._refused(number, outcome)

    def _refused(self, number: int, outcome: DeliveryResult) -> None:
        """Log a warning about rejected rows. The batch counts as delivered, so no other log entry reports them."""
        letters = outcome.letters
        self._log.warning(
            "rows rejected and kept as dead letters",
            batch_id=number,
            rejected=dict(outcome.rejected),
            keys=list(dict.fromkeys(letter.key for letter in letters))[:MOST_KEYS],
            reason=letters[0].reason,
            next_step=f"List them: cdf-replicator dead-letters list {self._route}",
        )

    def sink_up(self) -> None:
        self._board.sink_up(self._sink)

    def sink_down(self, decision: ErrorDecision) -> None:
        self._board.sink_down(self._sink, decision.message, decision.reason, decision.remedy)

    def failed(self, decision: ErrorDecision, *, detail: BaseException) -> None:
        """Report an error that ended the query or prevented its start. Only this method logs such an error."""
        self._board.failed(self._route, decision.message, decision.reason, decision.remedy)
        if self._should_log(decision.reason, decision.message):
            self._log.error(
                "route failed",
                reason=decision.reason,
                what=decision.message,
                next_step=decision.remedy,
                exc_info=detail if decision.reason == "bug" else None,
            )

    def _should_log(self, kind: str, text: str) -> bool:
        """Return whether an entry is new: not logged within ``AGAIN_SECONDS`` or since the route last ran.

        Entries are equal if their texts differ in ids alone.
        """
        now, said = time.monotonic(), (kind, _ID.sub("", text))
        self._said = {each: at for each, at in self._said.items() if now - at < AGAIN_SECONDS}
        news = said not in self._said
        if news:
            self._said[said] = now
        return news

    def restarted(self, reason: str) -> None:
        self._board.restarted(self._route, reason)

    def replay_failed(self) -> None:
        self._board.update(self._route, replay=None, replay_progress=0.0)

    def replay(self, starting: int, ending: int, ratio: float) -> None:
        """Report the progress of a replay. Ratio 1 ends it."""
        self._board.replay(self._route, starting, ending, ratio)
