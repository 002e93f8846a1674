"""Build the runner of each route from what the routes of a service share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cdf_replicator.monitoring.lag import LagMonitor
from cdf_replicator.monitoring.reporter import RouteReporter
from cdf_replicator.monitoring.retention import RetentionMonitor, RetentionReader
from cdf_replicator.pipeline.context import RouteContext, StartGate
from cdf_replicator.pipeline.route_stream import RouteStream
from cdf_replicator.pipeline.streaming_query import StreamingQueryRunner
from cdf_replicator.pipeline.target import TargetFactory
from cdf_replicator.runtime.command_dispatcher import Inbox
from cdf_replicator.runtime.command_executor import CommandExecutor
from cdf_replicator.runtime.command_handler import CommandHandler
from cdf_replicator.runtime.route_runner import RouteRunner
from cdf_replicator.source.table_watch import TableWatch

if TYPE_CHECKING:
    import threading

    from pyspark.sql import SparkSession

    from cdf_replicator.delivery.dead_letters import DeadLetters
    from cdf_replicator.monitoring.metrics import Metrics
    from cdf_replicator.route import Route
    from cdf_replicator.settings import Settings
    from cdf_replicator.state.store import StateStore


@dataclass(frozen=True, slots=True)
class RouteFactory:
    """The parts that the routes of a service share.

    Args:
        once: Whether the routes end after they have delivered every commit.
        stop: Set by SIGTERM.
    """

    spark: SparkSession
    settings: Settings
    state_store: StateStore
    dead_letters: DeadLetters
    metrics: Metrics
    once: bool
    stop: threading.Event
    retention: RetentionReader = field(default_factory=RetentionReader, init=False)
    starts: StartGate = field(default_factory=StartGate, init=False)
    tables: TableWatch = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", TableWatch(self.spark, self.settings.trigger_seconds, self.stop))

    def runner(self, route: Route, requested_start_version: int | None) -> RouteRunner:
        """Return the runner of a route, which is not started. For ``requested_start_version``, see ``RouteRunner``."""
        sink = self.settings.sink(route.sink)
        report = RouteReporter(route, self.metrics, type(sink))
        context = RouteContext(self.spark, route, self.state_store, report, self.settings, self.once)
        inbox = Inbox(self.stop)
        targets = TargetFactory(context, sink, self.dead_letters)
        retention = RetentionMonitor(report, self.settings.trigger_seconds, self.retention)
        stall_seconds = self.settings.delivery.stall_seconds
        lag = LagMonitor(self.spark, route, self.state_store, report, retention, stall_seconds)
        stream = RouteStream(
            context, targets, StreamingQueryRunner(context, inbox, lag, self.tables), lag, inbox, self.starts
        )
        handler = CommandHandler(context, CommandExecutor(context, targets, self.dead_letters), inbox)
        return RouteRunner(context, stream, handler, inbox, requested_start_version)
