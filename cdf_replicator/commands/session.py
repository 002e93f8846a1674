"""Answer the queries of a command: by the running service if there is one, else in a Spark session of the command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog

from cdf_replicator.commands import service
from cdf_replicator.commands.task_progress import without_progress
from cdf_replicator.errors.exceptions import StateError
from cdf_replicator.queries.answer import End, Failure
from cdf_replicator.queries.configuration import digest
from cdf_replicator.route import Source
from cdf_replicator.runtime import exit_codes
from cdf_replicator.state.service_record import NoServiceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from cdf_replicator.queries.answer import Event
    from cdf_replicator.queries.query import Query
    from cdf_replicator.route import Route
    from cdf_replicator.settings import Settings
    from cdf_replicator.settings.models import Spark, Table

log = structlog.get_logger(__name__)


class AnswerError(Exception):
    """A query has no answer.

    Args:
        what: Description of the error.
        next_step: The operator's next step; None if the description has it.
        exit_code: Exit code of the command.
    """

    def __init__(self, what: str, next_step: str | None = None, exit_code: int = exit_codes.FAILED) -> None:
        super().__init__(what)
        self.next_step = next_step
        self.exit_code = exit_code


class Answers:
    """The answers to the queries of one command. Its own Spark session starts at most once.

    Args:
        settings: The configuration; None if it is too incomplete to name a service.
        spark: Settings of an own session.
    """

    def __init__(self, settings: Settings | None, spark: Spark) -> None:
        self._settings = settings
        self._conf = spark
        self._session: SparkSession | None = None

    def close(self) -> None:
        if self._session is not None:
            self._session.stop()

    def values(self, query: Query, first_alone: Iterable[Any] = ()) -> Iterator[Any]:
        """Yield the values of an answer; raise ``AnswerError``.

        Args:
            query: The query.
            first_alone: Values that precede the answer if no service answers.
        """
        given, title = False, " ".join([query.name, *(query.concerned or ())])
        if self._session is None:
            try:
                for value in _values(self._of_service(query), title):
                    given = True
                    yield value
            except NoServiceError as error:
                if given:
                    what = f"The output is incomplete: {error}."
                    raise AnswerError(what, "Repeat the command.", exit_codes.TEMPORARY) from error
                log.info("this command starts Spark itself", reason=str(error))
            else:
                return
            yield from first_alone
        yield from _values(self._alone(query), title)

    def session(self) -> SparkSession:
        """Return the own Spark session; raise ``AnswerError`` if Spark does not start.

        Its JVM does not log failed tasks: the command reports their error, in full if its cause is unknown.
        """
        from cdf_replicator.spark import session

        if self._session is None:
            try:
                self._session = session.start(self._conf, log_tasks=False)
            except session.SparkStartError as error:
                raise AnswerError(str(error), exit_code=exit_codes.CONFIGURATION) from error
        return self._session

    def _of_service(self, query: Query) -> Iterator[Event]:
        if self._settings is None:
            raise NoServiceError("the configuration names no service")
        agreed = query.model_copy(update={"configuration": digest(self._settings, query.concerned)})
        return service.events(self._settings, agreed)

    def _alone(self, query: Query) -> Iterator[Event]:
        from cdf_replicator.queries import changes, execution, validation
        from cdf_replicator.queries.query import ReadChanges, Validate
        from cdf_replicator.queries.running import RunningQuery
        from cdf_replicator.state.location import check_local_folder, state_folder
        from cdf_replicator.state.store import StateStore

        settings = self._settings
        if settings is not None and not isinstance(query, ReadChanges | Validate):
            try:
                check_local_folder(settings)
            except StateError as error:
                raise AnswerError(str(error), exit_code=exit_codes.CONFIGURATION) from error
        spark = self.session()

        def work() -> Iterator[Any]:
            if isinstance(query, ReadChanges):  # needs no settings
                return changes.read(spark, query)
            assert settings is not None
            if isinstance(query, Validate):  # needs no state path
                return validation.problems(spark, settings)
            return execution.execute(query, spark, settings, StateStore(state_folder(settings)))

        running = RunningQuery(spark, work, query.name, query.concerned[0] if query.concerned else "")
        event = None
        try:
            for event in running.events():
                yield event
            if not isinstance(event, Failure | End):
                yield Failure("The JVM of this command has ended.", "Repeat the command.")
        finally:
            running.cancel()


def _values(events: Iterator[Event], title: str) -> Iterator[Any]:
    """Yield the values of events, and show the progress on a terminal until the first of them."""
    for event in without_progress(events, title):
        if isinstance(event, Failure):
            raise AnswerError(event.what, event.next_step)
        yield from event.values


def reported(work: Callable[[], None], **context: str) -> int:
    """Run ``work`` and return the exit code; log an error with a next step and ``context``."""
    try:
        work()
    except AnswerError as error:
        context |= {} if error.next_step is None else {"next_step": error.next_step}
        log.error(str(error), **context)  # noqa: TRY400 - the message is complete
        return error.exit_code
    return exit_codes.DONE


def source_named(name: str, tables: Mapping[str, Table]) -> Source:
    """Return a configured table by its slug, else a path (a name with a slash), else a name in the catalog."""
    if name in tables:
        return Source(name, path=tables[name].path, name=tables[name].name)
    return Source(name, path=name) if "/" in name else Source(name, name=name)


def routes_named(name: str, routes: Mapping[str, Route]) -> list[Route]:
    """Return a route by its name, else the routes of the table of that name."""
    return [routes[name]] if name in routes else [route for route in routes.values() if route.source.slug == name]
