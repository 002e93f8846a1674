"""Hold the configuration in force, and read the next from the sources of the start."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from cdf_replicator import settings as configuration
from cdf_replicator.monitoring.definitions import effective_settings
from cdf_replicator.runtime import exit_codes
from cdf_replicator.runtime.reload.names import Names, names
from cdf_replicator.runtime.reload.plan import AT_START, ReloadPlan, compare, in_force
from cdf_replicator.settings import ConfigurationError
from cdf_replicator.settings.parsing.errors import Problems
from cdf_replicator.state.command_queue import CommandStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from cdf_replicator.monitoring.status_store import StatusStore
    from cdf_replicator.route import Route
    from cdf_replicator.settings import Settings

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Selection:
    """The routes that the command line selects.

    Args:
        tables: Slugs of the source tables to follow; empty follows all.
        starting_versions: First commit version by table slug; that of None is for every other table, also if a reload adds it.
    """

    tables: frozenset[str] = frozenset()
    starting_versions: Mapping[str | None, int] = field(default_factory=dict)

    def routes(self, settings: Settings) -> dict[str, Route]:
        """Return the selected routes of a configuration, by name."""
        routes = settings.routes.items()
        return {name: route for name, route in routes if not self.tables or route.source.slug in self.tables}

    def starting_version(self, route: Route) -> int | None:
        """Return the first commit version that the command line gives for the table of a route."""
        return self.starting_versions.get(route.source.slug, self.starting_versions.get(None))


@dataclass(frozen=True, slots=True)
class Reload:
    """A configuration that was read and is right, and what changes with it."""

    plan: ReloadPlan
    settings: Settings
    names: Names


class Configuration:
    """The configuration in force, ``settings``, with its ``names``, and the ``selection`` of the command line.

    A reload keeps the selection. The constructor raises ``ConfigurationError`` if a sink can't name itself.
    """

    def __init__(self, settings: Settings, selection: Selection, board: StatusStore) -> None:
        self.settings = settings
        self.selection = selection
        self.names = names(settings, self.routes)
        self._board = board
        board.set_settings(effective_settings(settings))

    @property
    def routes(self) -> dict[str, Route]:
        """Return the routes to run, by name."""
        return self.selection.routes(self.settings)

    def read(self, *, dry_run: bool = False, at_start: Collection[str] = AT_START) -> Reload | CommandStatus:
        """Read the configuration again; return the answer to the operator if it is wrong.

        Args:
            dry_run: Whether a wrong configuration is not counted.
            at_start: The groups and settings that take effect at the next start only.
        """
        try:
            loaded = configuration.load()
            self._check_tables(loaded)
            named = names(loaded, self.selection.routes(loaded))
            plan = compare(self.settings, loaded, self.selection.routes, at_start)
            return Reload(plan, in_force(self.settings, loaded, at_start), named)
        except ConfigurationError as error:
            log.error("configuration not reloaded", problems=len(error.problems), reason=str(error))  # noqa: TRY400
            refusal = CommandStatus("failed", str(error), exit_code=exit_codes.CONFIGURATION)
        except Exception as error:
            # The package that a sink's type needs may raise any error. The service continues as before.
            log.exception("configuration not reloaded")
            refusal = CommandStatus("failed", f"{type(error).__name__}: {error}")
        if not dry_run:
            self._board.event("reload refused: the configuration is wrong, and nothing changed; see the log")
            self._board.reloaded(successful=False)
        return refusal

    def refresh(self, *, spark_runs: bool) -> None:
        """Read the configuration again; put it in force if a setting differs or the last reload has failed.

        Args:
            spark_runs: Whether Spark has started, so that changed settings of Spark take effect at the next start only.
        """
        found = self.read(at_start=AT_START if spark_runs else {*AT_START} - {"spark"})
        if isinstance(found, Reload):
            last = self._board.snapshot().service.reloads
            if found.settings != self.settings or found.plan.deferred or not last.successful:
                self.adopt(found)

    def adopt(self, reload: Reload) -> None:
        """Put a configuration in force."""
        self.settings, self.names = reload.settings, reload.names
        self._board.set_settings(effective_settings(self.settings))
        self._board.reloaded(successful=True)
        plan = reload.plan
        for action in plan.actions:
            self._board.event(f"reload: {action.action}{f', {action}' if str(action) else ''}", action.route)
            log.info("route reloaded", route=action.route, action=action.action, differs=str(action) or None)
        log.info(
            "configuration reloaded", routes=len(plan.actions), deferred=[each.path for each in plan.deferred] or None
        )

    def _check_tables(self, loaded: Settings) -> None:
        """Raise ``ConfigurationError`` if no route is left of the tables that the command line names."""
        if not self.selection.routes(loaded):
            problems = Problems()
            names, expected = ", ".join(sorted(self.selection.tables)), "a table of the configuration that has a route"
            problems.add((), names, expected, "--table")
            raise ConfigurationError(problems)
