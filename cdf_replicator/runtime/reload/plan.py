"""Compare two configurations, and plan what a reload does with each route. Nothing here reads or changes a service."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from cdf_replicator.settings.effective import setting, values_of, values_read_by
from cdf_replicator.settings.routes import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from cdf_replicator.route import Route
    from cdf_replicator.settings import Settings
    from cdf_replicator.settings.parsing.raw import Path

Action = Literal["start", "stop", "restart"]
AT_START: Final = ("state_path", "http", "spark", "log")
"""Settings that a service reads at its start only: its lease, its port, its JVM and its log exist once."""
COMPARISONS: Final = "verify"
"""Settings that a reload applies without a restart of a route."""
NOTHING: Final = (
    "Nothing differs. Variables of the environment override the file, and are read at the start of the service only."
)
_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting that differs, with both values as text; None if it is not set."""

    path: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        if self.before == self.after:  # a secret, or a long value
            return f"{self.path}: changed"
        before, after = ("not set" if value is None else value for value in (self.before, self.after))
        return f"{self.path}: {before} -> {after}"


@dataclass(frozen=True, slots=True)
class RouteAction:
    """The action of a reload on one route.

    Args:
        route: Name of the route.
        action: What it does.
        differences: The settings that differ, of a restart.
        resync: Whether the route's definition differs, so that a route that has delivered anything needs a resync.
    """

    route: str
    action: Action
    differences: tuple[Difference, ...] = ()
    resync: bool = False

    def __str__(self) -> str:
        after = f" (then, if it has delivered: cdf-replicator resync {self.route})" if self.resync else ""
        return "; ".join(map(str, self.differences)) + after


@dataclass(frozen=True, slots=True)
class ReloadPlan:
    """The actions of a reload, and the settings that differ outside of the routes.

    Args:
        actions: What it does with each route that is concerned.
        comparisons: The settings of the comparisons beside the streams that differ. They take effect at once.
        deferred: The settings that differ and take effect at the next start of the service.
        waits: For each route that starts, the routes that must have ended before: its own former thread, and each route
            whose former target it may write to.
    """

    actions: tuple[RouteAction, ...] = ()
    comparisons: tuple[Difference, ...] = ()
    deferred: tuple[Difference, ...] = ()
    waits: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def ends(self) -> list[str]:
        """Return the names of the routes that a reload stops, for good or for a restart."""
        return [action.route for action in self.actions if action.action != "start"]

    @property
    def begins(self) -> list[str]:
        """Return the names of the routes that a reload starts, for the first time or again."""
        return [action.route for action in self.actions if action.action != "stop"]

    @property
    def changes_running(self) -> bool:
        """Return whether a reload changes anything that runs."""
        return bool(self.actions or self.comparisons)

    def text(self, *, dry_run: bool = False) -> str:
        """Return the plan for an operator: a line per route, then one per setting of the service."""
        width = max((len(action.route) for action in self.actions), default=0)
        lines = [f"{action.route:{width}}  {action.action:7}  {action}".rstrip() for action in self.actions]
        lines += [f"takes effect at once: {difference}" for difference in self.comparisons]
        lines += [f"takes effect at the next start: {difference}" for difference in self.deferred]
        return "\n".join([*(lines or [NOTHING]), *(["Nothing was changed."] if dry_run else [])])


def compare(
    before: Settings,
    after: Settings,
    select: Callable[[Settings], Mapping[str, Route]],
    at_start: Collection[str] = AT_START,
) -> ReloadPlan:
    """Return the plan of a reload from one configuration to the next.

    Args:
        before: The configuration in force.
        after: The configuration that was read.
        select: Returns the routes of a configuration that the service runs, by name.
        at_start: The groups and settings that take effect at the next start only.
    """
    running, wanted = select(before), select(after)
    actions = [RouteAction(name, "stop") for name in running if name not in wanted]
    for name, route in wanted.items():
        if name not in running:
            actions.append(RouteAction(name, "start"))
        elif found := _differences(values_read_by(running[name], before), values_read_by(route, after), before, after):
            redefined = _identity(running[name], before) != _identity(route, after)
            actions.append(RouteAction(name, "restart", found, redefined))
    changed = _differences(values_of(before), values_of(after), before, after)
    comparisons = tuple(one for one in changed if one.path.startswith(f"{COMPARISONS}."))
    deferred = tuple(one for one in changed if one.path.split(".")[0] in at_start)
    plan = ReloadPlan(tuple(sorted(actions, key=lambda action: action.route)), comparisons, deferred)
    ends = [Target.of(running[name], before.sink(running[name].sink)) for name in plan.ends]
    begins = [Target.of(wanted[name], after.sink(wanted[name].sink)) for name in plan.begins]
    return replace(plan, waits={target.route.name: _former(target, ends) for target in begins})


def _former(target: Target, ends: Iterable[Target]) -> frozenset[str]:
    name = target.route.name
    return frozenset(end.route.name for end in ends if end.route.name == name or target.may_meet(end))


def in_force(before: Settings, after: Settings, at_start: Collection[str] = AT_START) -> Settings:
    """Return the configuration after a reload: the next, except what a service reads at its start only."""
    return replace(after, **{name: getattr(before, name) for name in at_start})


def _differences(
    one: Mapping[Path, Any], other: Mapping[Path, Any], before: Settings, after: Settings
) -> tuple[Difference, ...]:
    def differing() -> Iterator[Difference]:
        for path in dict.fromkeys((*one, *other)):
            old, new = one.get(path, _ABSENT), other.get(path, _ABSENT)
            if old != new:
                shown = [
                    None if value is _ABSENT else setting(path, value, settings)
                    for value, settings in ((old, before), (new, after))
                ]
                name = next(found.path for found in shown if found is not None)
                yield Difference(name, *(None if found is None else found.value for found in shown))

    return tuple(differing())


def _identity(route: Route, settings: Settings) -> dict[str, Any]:
    return route.identity(settings.sink(route.sink).target(route.spec(owner="", epoch=0)))
