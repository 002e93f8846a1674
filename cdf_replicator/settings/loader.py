"""Load ``Settings`` from the environment and an optional file, or report every problem at once.

No other module reads configuration from the environment.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import connectors
from cdf_replicator.settings import unsupported
from cdf_replicator.settings.models import (
    FIXED_GROUPS,
    SLUG_EXPECTED,
    Delivery,
    General,
    Group,
    Http,
    Log,
    Spark,
    Table,
    is_slug,
)
from cdf_replicator.settings.parsing.errors import ConfigProblem, ConfigurationError
from cdf_replicator.settings.parsing.raw import DEFAULT, ENVIRONMENT, NEST, Path, RawTree, RawValue, leaves, variable_of
from cdf_replicator.settings.parsing.sources import CONFIG_FILE, DICT_GROUPS, GROUPS, read_sources
from cdf_replicator.settings.parsing.validation import UNKNOWN, validate, with_secret_files
from cdf_replicator.settings.redact import HIDDEN, sensitive_conf, shown
from cdf_replicator.settings.routes import RouteInputs, resolve_routes, shorthands
from cdf_replicator.settings.underscores import nested
from connectors import Sink, SinkNotFoundError, SinkSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cdf_replicator.route import Route

TWO_UNDERSCORES: Final = "two underscores between the parts of its name; did you mean {}?"


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
    problems: list[ConfigProblem] = []
    tree = read_sources(environ, problems)
    file_failed = any(problem.variable == CONFIG_FILE for problem in problems)
    if environ.get("PROMETHEUS_MULTIPROC_DIR"):
        given = repr(shown(environ["PROMETHEUS_MULTIPROC_DIR"]))
        expected = "not set: metrics are counted in one process, and the variable would break them"
        problems.append(ConfigProblem("PROMETHEUS_MULTIPROC_DIR", "", given, expected))

    general = _general(tree, problems)
    groups = {name: _group(name, model, tree, problems) for name, model in FIXED_GROUPS.items()}
    _refuse_conf(groups["spark"], problems)
    trees = {name: _dict_group(name, tree, problems) for name in DICT_GROUPS}
    tables = {slug: _table(slug, node, problems) for slug, node in trees["tables"].items()}
    kinds, sinks = _sinks(trees["sinks"], problems)
    names = shorthands(trees["tables"], problems)
    parts = RouteInputs(tables, {slug: (kinds[slug], sinks[slug]) if slug in kinds else None for slug in sinks}, names)
    routes = resolve_routes(parts, trees["routes"], problems)
    _need_routes(tables, routes, problems)
    included = _included(general, routes, {*names, *trees["routes"]}, problems)

    if file_failed:  # the file may have held the missing values
        problems = [problem for problem in problems if problem.given is not None]
    if problems or general is None:
        raise ConfigurationError(problems)
    return Settings(
        **general.model_dump(),
        **groups,  # type: ignore[arg-type]
        tables={slug: table for slug, table in tables.items() if table is not None},
        sinks={slug: settings for slug, settings in sinks.items() if settings is not None},
        routes=included,
        origins=_origins(tree, kinds),
    )


@dataclass(frozen=True, repr=False)
class TableSettings:
    """Configuration of a command that only reads source tables and needs neither a state path nor a sink."""

    spark: Spark
    log: Log
    tables: Mapping[str, Table]


def load_table_settings(environ: Mapping[str, str] = os.environ) -> TableSettings:
    """Read and validate that part of the configuration; raise ``ConfigurationError`` with every problem found."""
    problems: list[ConfigProblem] = []
    tree = read_sources(environ, problems)
    spark, log = _group("spark", Spark, tree, problems), _group("log", Log, tree, problems)
    _refuse_conf(spark, problems)
    trees = _dict_group("tables", tree, problems)
    tables = {slug: _table(slug, node, problems) for slug, node in trees.items()}
    if problems:
        raise ConfigurationError(problems)
    assert isinstance(spark, Spark)
    assert isinstance(log, Log)
    return TableSettings(spark, log, {slug: table for slug, table in tables.items() if table is not None})


def _general(tree: RawTree, problems: list[ConfigProblem]) -> General | None:
    known = [*General.model_fields, *GROUPS]
    own: RawTree = {}
    for name, node in tree.items():
        if name in General.model_fields:
            own[name] = node
        elif name not in GROUPS:
            problems.extend(_unknown(path, given, known) for path, given in leaves(node, tuple(name.split(NEST))))
    return validate(General, own, (), problems)


def _unknown(path: Path, given: RawValue, known: list[str]) -> ConfigProblem:
    """Return the problem of an unknown first name; the nearest name may nest differently (``CDF_LOG_LEVEL``)."""
    if (meant := nested(given.variable)) is not None:
        return ConfigProblem.at(path, UNKNOWN, TWO_UNDERSCORES.format(meant), given.variable)
    fields = [(group, field) for group, model in FIXED_GROUPS.items() for field in model.model_fields]
    candidates = {variable_of(names) for names in [*((name,) for name in known), *fields]}
    first = difflib.get_close_matches(path[0], GROUPS, n=1)
    if first and len(path) > 1:
        near = [variable_of((first[0], *path[1:]))]
    else:
        near = difflib.get_close_matches(given.variable.upper(), sorted(candidates), n=1)
    expected = (
        f"no such setting; did you mean {near[0]}?" if near else "no such setting; see: cdf-replicator config env"
    )
    return ConfigProblem.at(path, UNKNOWN, expected, given.variable)


def _group(name: str, model: type[Group], tree: RawTree, problems: list[ConfigProblem]) -> Group | None:
    node = tree.get(name, {})
    if isinstance(node, RawValue):
        problems.append(_not_a_group((name,), node, model.model_fields))
        return None
    return validate(model, node, (name,), problems)


def _dict_group(name: str, tree: RawTree, problems: list[ConfigProblem]) -> dict[str, RawTree]:
    """Return the trees of ``tables``, ``sinks`` or ``routes`` by slug."""
    node = tree.get(name, {})
    if isinstance(node, RawValue):
        problems.append(_not_a_group((name,), node, [f"<{name[:-1]}>"]))
        return {}
    result: dict[str, RawTree] = {}
    for slug, below in node.items():
        if not is_slug(slug):
            first = next((given.variable for _, given in leaves(below)), None)
            problems.append(ConfigProblem.at((name, slug), repr(shown(slug)), SLUG_EXPECTED, first))
        elif isinstance(below, RawValue):
            problems.append(_not_parted((name, slug), below))
        else:
            result[slug] = below
    return result


def _not_a_group(path: Path, node: RawValue, names: Any) -> ConfigProblem:
    example = next(iter(names)).upper()
    given = HIDDEN if path[0] in ("sinks", "spark") else node.display
    return ConfigProblem.at(path, given, f"its settings one by one: {variable_of(path)}__{example}=...", node.variable)


def _not_parted(path: Path, node: RawValue) -> ConfigProblem:
    """Return the problem of a value in the place of a table, sink or route, such as ``CDF_TABLES__ORDERS_PATH``."""
    meant = nested(node.variable) if node.origin == ENVIRONMENT else None
    if meant is None or meant.endswith(">"):
        return _not_a_group(path, node, ["<setting>"])
    given = HIDDEN if path[0] == "sinks" else node.display
    return ConfigProblem.at(path, given, TWO_UNDERSCORES.format(meant), node.variable)


def _table(slug: str, tree: RawTree, problems: list[ConfigProblem]) -> Table | None:
    path, before = ("tables", slug), len(problems)
    allowed: RawTree = {}
    for name, node in tree.items():
        reason = unsupported.unsupported_option(name)
        if reason is None:
            allowed[name] = node
        else:
            first = next((given for _, given in leaves(node)), None)
            told, variable = (first.display, first.variable) if first else (None, None)
            problems.append(ConfigProblem.at((*path, name), told, f"not set: {reason}", variable))
    table = validate(Table, allowed, path, problems)
    if table is not None:
        problems.extend(_contradictions(path, table))
    return table if len(problems) == before else None


def _contradictions(path: Path, table: Table) -> list[ConfigProblem]:
    result = []
    if (table.path is None) == (table.name is None):
        expected = "exactly one of PATH (a location) and NAME (in the catalog)"
        result.append(ConfigProblem.at((*path, "path"), table.path and repr(shown(table.path)), expected))
    if table.starting_version is not None and table.starting_timestamp is not None:
        expected = "at most one of STARTING_VERSION and STARTING_TIMESTAMP"
        result.append(ConfigProblem.at((*path, "starting_version"), repr(str(table.starting_version)), expected))
    for name, values in (("keys", [key.lower() for key in table.keys]), ("sinks", list(table.sinks))):
        if len(set(values)) != len(values):
            result.append(ConfigProblem.at((*path, name), repr(",".join(values)), "each name once"))
    return result


def _sinks(
    trees: Mapping[str, RawTree], problems: list[ConfigProblem]
) -> tuple[dict[str, type[Sink]], dict[str, SinkSettings | None]]:
    """Return class and settings of each sink by slug; its type selects the class."""
    kinds: dict[str, type[Sink]] = {}
    settings: dict[str, SinkSettings | None] = {}
    for slug, tree in trees.items():
        path, node = ("sinks", slug), tree.get("type")
        settings[slug] = None
        if not isinstance(node, RawValue):
            expected = f"the type of the sink; installed: {', '.join(connectors.installed()) or 'none'}"
            problems.append(ConfigProblem.at((*path, "type"), None, expected))
            continue
        try:
            kinds[slug] = connectors.load(str(node.value))
        except SinkNotFoundError as error:
            problems.append(ConfigProblem.at((*path, "type"), node.display, str(error), node.variable))
            continue
        settings[slug] = validate(kinds[slug].Settings, tree, path, problems)
    return kinds, settings


def _refuse_conf(spark: Group | None, problems: list[ConfigProblem]) -> None:
    conf = spark.conf if isinstance(spark, Spark) else {}
    for key, value in conf.items():
        expected = unsupported.spark_conf(key, value)
        if expected is not None:
            given = f"{key}={HIDDEN if sensitive_conf(key) else shown(value)}"
            problems.append(ConfigProblem("CDF_SPARK__CONF", f"spark.conf[{shown(key)}]", given, expected))


def _need_routes(
    tables: Mapping[str, Table | None], routes: Mapping[str, Route], problems: list[ConfigProblem]
) -> None:
    if not tables:
        expected = "at least one table: its PATH, KEYS and SINKS"
        problems.append(ConfigProblem("CDF_TABLES__<TABLE>__PATH", "tables", None, expected))
    elif not routes and not problems:
        table = next(iter(tables))
        problems.append(
            ConfigProblem.at(("tables", table, "sinks"), None, "at least one sink, or nothing is delivered")
        )


def _included(
    general: General | None, routes: Mapping[str, Route], named: set[str], problems: list[ConfigProblem]
) -> dict[str, Route]:
    wanted = general.routes_include if general else None
    if wanted is None:
        return dict(routes)
    for name in wanted:
        if name not in named:
            near = difflib.get_close_matches(name, sorted(named), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(named)) or 'none'}"
            problems.append(ConfigProblem.at(("routes_include",), repr(shown(name)), f"names of routes; {hint}"))
    if not wanted:
        problems.append(ConfigProblem.at(("routes_include",), "an empty list", "at least one route"))
    return {name: route for name, route in routes.items() if name in wanted}


def _origins(tree: RawTree, kinds: Mapping[str, type[Sink]]) -> dict[Path, str]:
    """Return the origin of every given value by path; a secret's file is an origin."""
    models: dict[Path, Any] = {(name,): model for name, model in FIXED_GROUPS.items()}
    models |= {("sinks", slug): kind.Settings for slug, kind in kinds.items()}
    result = {path: given.origin for path, given in leaves(tree)}
    for path, model in models.items():
        node: Any = tree
        for part in path:
            node = node.get(part, {})
        read = {below: given.origin for below, given in leaves(with_secret_files(model, node, path, []), path)}
        result = {other: origin for other, origin in result.items() if other[: len(path)] != path} | read
    return result
