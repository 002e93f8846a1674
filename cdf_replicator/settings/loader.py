"""Load ``Settings`` from the environment and an optional file, or report every problem at once.

No other module reads configuration from the environment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import connectors
from cdf_replicator.settings import unsupported
from cdf_replicator.settings.groups import fixed_group, general, groups_by_slug, need_one_location, supported
from cdf_replicator.settings.models import FIXED_GROUPS, Delivery, General, Group, Http, Log, Spark, Table, Verify
from cdf_replicator.settings.parsing.errors import ConfigurationError, Problems, meant
from cdf_replicator.settings.parsing.raw import DEFAULT, Path, RawTree, RawValue, leaves
from cdf_replicator.settings.parsing.sources import CONFIG_FILE, DICT_GROUPS, read_sources
from cdf_replicator.settings.parsing.validation import validate
from cdf_replicator.settings.redact import HIDDEN, sensitive_conf, shown
from cdf_replicator.settings.routes import RouteInputs, SinkParts, resolve_routes, shorthands
from connectors import Sink, SinkNotFoundError, SinkSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cdf_replicator.route import Route


@dataclass(frozen=True, repr=False)  # holds secrets; ``effective`` returns values that may be shown
class Settings:
    """The validated configuration.

    Args:
        routes: the routes to run, by name.
        origins: origin of each given value by path (``environment``, the YAML file, a secret's file). A path that is absent
            has its default.

    """

    state_path: str
    trigger_seconds: float
    shutdown_seconds: float
    http: Http
    spark: Spark
    log: Log
    delivery: Delivery
    verify: Verify
    tables: Mapping[str, Table]
    sinks: Mapping[str, SinkSettings]
    routes: Mapping[str, Route]
    routes_include: tuple[str, ...] | None
    origins: Mapping[Path, str]

    def sink(self, slug: str) -> Sink:
        """Return a new, unopened sink."""
        settings = self.sinks[slug]
        return connectors.load(settings.type)(settings)

    def origin(self, path: Path) -> str:
        """Return the origin of the value at ``path``, or several if a map was given in parts."""
        found = {origin for given, origin in self.origins.items() if path[: len(given)] == given}
        found |= {origin for given, origin in self.origins.items() if given[: len(path)] == path}
        return ", ".join(sorted(found)) or DEFAULT


def load(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read and validate the configuration; raise ``ConfigurationError`` with every problem found."""
    problems = Problems()
    tree = read_sources(environ, problems)
    if environ.get("PROMETHEUS_MULTIPROC_DIR"):
        given = repr(shown(environ["PROMETHEUS_MULTIPROC_DIR"]))
        expected = "not set: metrics are counted in one process, and the variable would break them"
        problems.add((), given, expected, "PROMETHEUS_MULTIPROC_DIR")

    own = general(tree, problems)
    groups = {name: fixed_group(name, model, tree, problems) for name, model in FIXED_GROUPS.items()}
    _refuse_conf(groups["spark"], problems)
    trees = {name: groups_by_slug(tree.get(name), (name,), "<setting>", problems) for name in DICT_GROUPS}
    tables = {slug: _table(slug, node, problems) for slug, node in trees["tables"].items()}
    sinks = {slug: _sink(slug, node, problems) for slug, node in trees["sinks"].items()}
    names = shorthands(trees["tables"], problems)
    routes = resolve_routes(RouteInputs(tables, sinks, names), trees["routes"], problems)
    _need_routes(tables, routes, problems)
    included = _included(own, routes, {*names, *trees["routes"]}, problems)

    if problems or own is None:
        raise ConfigurationError(_without_missing(problems))
    return Settings(
        **own.model_dump(),
        **groups,  # type: ignore[arg-type]
        tables={slug: table for slug, table in tables.items() if table is not None},
        sinks={slug: sink[1] for slug, sink in sinks.items() if sink is not None and sink[1] is not None},
        routes=included,
        origins={path: given.origin for path, given in leaves(tree)},
    )


@dataclass(frozen=True, repr=False)
class TableSettings:
    """Configuration of a command that only reads source tables and needs neither a state path nor a sink."""

    spark: Spark
    log: Log
    tables: Mapping[str, Table]


def load_table_settings(environ: Mapping[str, str] = os.environ) -> TableSettings:
    """Read and validate that part of the configuration; raise ``ConfigurationError`` with every problem found."""
    problems = Problems()
    tree = read_sources(environ, problems)
    spark, log = fixed_group("spark", Spark, tree, problems), fixed_group("log", Log, tree, problems)
    _refuse_conf(spark, problems)
    trees = groups_by_slug(tree.get("tables"), ("tables",), "<setting>", problems)
    tables = {slug: _table(slug, node, problems) for slug, node in trees.items()}
    if problems:
        raise ConfigurationError(_without_missing(problems))
    assert isinstance(spark, Spark)
    assert isinstance(log, Log)
    return TableSettings(spark, log, {slug: table for slug, table in tables.items() if table is not None})


@dataclass(frozen=True, repr=False)
class StateSettings:
    """Configuration of a command that only reaches the running service, through its state path."""

    state_path: str
    spark: Spark
    log: Log


def load_state_settings(environ: Mapping[str, str] = os.environ) -> StateSettings:
    """Read and validate that part of the configuration; raise ``ConfigurationError`` with every problem found."""
    problems = Problems()
    tree = read_sources(environ, problems)
    own = general(tree, problems)
    spark, log = fixed_group("spark", Spark, tree, problems), fixed_group("log", Log, tree, problems)
    _refuse_conf(spark, problems)
    if problems or own is None:
        raise ConfigurationError(_without_missing(problems))
    assert isinstance(spark, Spark)
    assert isinstance(log, Log)
    return StateSettings(own.state_path, spark, log)


def _without_missing(problems: Problems) -> Problems:
    """Return the problems; if the file can't be read, without those of missing values, which it may hold."""
    if all(problem.variable != CONFIG_FILE for problem in problems):
        return problems
    return Problems(problem for problem in problems if problem.given is not None)


def _table(slug: str, tree: RawTree, problems: Problems) -> Table | None:
    path, before = ("tables", slug), len(problems)
    table = validate(Table, supported(tree, path, problems), path, problems)
    if table is not None:
        need_one_location(table, path, problems)
        if table.starting_version is not None and table.starting_timestamp is not None:
            expected = "at most one of STARTING_VERSION and STARTING_TIMESTAMP"
            problems.add((*path, "starting_version"), repr(str(table.starting_version)), expected)
        for name, values in (("keys", [key.lower() for key in table.keys]), ("sinks", list(table.sinks))):
            if len(set(values)) != len(values):
                problems.add((*path, name), repr(",".join(values)), "each name once")
    return table if len(problems) == before else None


def _sink(slug: str, tree: RawTree, problems: Problems) -> SinkParts | None:
    """Return class and settings of a sink; its type selects the class."""
    path, node = ("sinks", slug), tree.get("type")
    if not isinstance(node, RawValue):
        expected = f"the type of the sink; installed: {', '.join(connectors.installed()) or 'none'}"
        problems.add((*path, "type"), None, expected)
        return None
    try:
        kind = connectors.load(str(node.value))
    except SinkNotFoundError as error:
        problems.add((*path, "type"), node.display, str(error), node.variable)
        return None
    return kind, validate(kind.Settings, tree, path, problems)


def _refuse_conf(spark: Group | None, problems: Problems) -> None:
    conf = spark.conf if isinstance(spark, Spark) else {}
    for key, value in conf.items():
        expected = unsupported.spark_conf(key, value)
        if expected is not None:
            given = f"{key}={HIDDEN if sensitive_conf(key) else shown(value)}"
            problems.add((f"spark.conf[{shown(key)}]",), given, expected, "CDF_SPARK__CONF")


def _need_routes(tables: Mapping[str, Table | None], routes: Mapping[str, Route], problems: Problems) -> None:
    if not tables:
        expected = "at least one table: its PATH, KEYS and SINKS"
        problems.add(("tables",), None, expected, "CDF_TABLES__<TABLE>__PATH")
    elif not routes and not problems:
        table = next(iter(tables))
        problems.add(("tables", table, "sinks"), None, "at least one sink, or nothing is delivered")


def _included(
    own: General | None, routes: Mapping[str, Route], named: set[str], problems: Problems
) -> dict[str, Route]:
    wanted = own.routes_include if own else None
    if wanted is None:
        return dict(routes)
    for name in wanted:
        if name not in named:
            expected = f"names of routes; {meant(name, sorted(named))}"
            problems.add(("routes_include",), repr(shown(name)), expected)
    if not wanted:
        problems.add(("routes_include",), "an empty list", "at least one route")
    return {name: route for name, route in routes.items() if name in wanted}
