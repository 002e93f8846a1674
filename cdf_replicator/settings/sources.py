"""Where values come from: the environment, and an optional YAML file of the same shape below it."""

from __future__ import annotations

import re
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Final

from cdf_replicator.settings.given import ENVIRONMENT, NEST, PREFIX, Given, Path, Tree, leaves, split_map, variable_of
from cdf_replicator.settings.problems import Problem
from cdf_replicator.settings.redact import masked, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG_FILE: Final = "CDF_CONFIG_FILE"
GROUPS: Final = ("tables", "sinks", "routes", "http", "spark", "log", "delivery")
DICT_GROUPS: Final = ("tables", "sinks", "routes")

# What Kubernetes sets in every pod for a Service called "cdf" or "cdf-something".
_INJECTED: Final = re.compile(
    r"CDF_(PORT|PORT_.*|SERVICE_.*|.+_SERVICE_(HOST|PORT|PORT_.+)|.+_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)",
)
_INJECTED_ADDRESS: Final = re.compile(r"(tcp|udp|sctp)://.*")


def injected(name: str, value: str) -> bool:
    """Whether Kubernetes put this variable there, and nobody meant it for us."""
    if name[len(PREFIX) :].lower().split(NEST)[0] in GROUPS:
        return False
    if name.endswith("_PORT") and _INJECTED_ADDRESS.fullmatch(value):
        return True
    return _INJECTED.fullmatch(name) is not None


def environment(environ: Mapping[str, str], problems: list[Problem]) -> Tree:
    """Every ``CDF_`` variable as a tree. An empty one counts as not set."""
    tree: Tree = {}
    for name, value in sorted(environ.items()):
        if not name.startswith(PREFIX) or name == CONFIG_FILE or not value.strip() or injected(name, value):
            continue
        path = tuple(name[len(PREFIX) :].lower().split(NEST))
        if path[:2] == ("spark", "conf") and path[2:]:
            expected = 'CDF_SPARK__CONF={"spark.driver.memory": "2g"}: one JSON object, since Spark\'s names have dots'
            problems.append(Problem(name, "spark.conf", _told(path, value), expected))
        else:
            _insert(tree, path, Given(value.strip(), name, ENVIRONMENT), problems)
    return tree


def _insert(tree: Tree, path: Path, given: Given, problems: list[Problem]) -> None:
    node = tree
    for part in path[:-1]:
        below = node.setdefault(part, {})
        if isinstance(below, Given):
            expected = f"either this or {below.variable}, not both"
            problems.append(Problem(given.variable, ".".join(path), _told(path, given.value), expected))
            return
        node = below
    before = node.get(path[-1])
    if before is None:
        node[path[-1]] = given
        return
    other = before.variable if isinstance(before, Given) else next(leaf.variable for _, leaf in leaves(before))
    expected = f"either this or {other}, not both"
    problems.append(Problem(given.variable, ".".join(path), _told(path, given.value), expected))


def _told(path: Path, value: str) -> str:
    """In a place where the field, and so whether it is a secret, is not known."""
    return "(hidden)" if any("conf" in part or path[0] == "sinks" for part in path) else repr(shown(value))


def yaml_file(location: str, problems: list[Problem]) -> Tree:
    """The file of ``CDF_CONFIG_FILE`` as a tree; a key without a value counts as not set."""
    import yaml

    try:
        document = yaml.load(FilePath(location).read_text("utf-8"), Loader=_strict_loader())  # noqa: S506 - a SafeLoader
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        cause = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        problems.append(Problem(CONFIG_FILE, "", repr(location), f"a readable YAML file; {cause}"))
        return {}
    if document is None:
        return {}
    if not isinstance(document, dict):
        problems.append(Problem(CONFIG_FILE, "", repr(location), "a YAML file that holds a mapping"))
        return {}
    return _grown(document, (), masked(location))


def _grown(mapping: dict[Any, Any], path: Path, origin: str) -> Tree:
    tree: Tree = {}
    for key, value in mapping.items():
        here = (*path, str(key))
        if isinstance(value, dict):
            tree[str(key)] = _grown(value, here, origin)
        elif value is not None:
            tree[str(key)] = Given(value, variable_of(_variable_path(here)), origin)
    return tree


def _variable_path(path: Path) -> Path:
    return path[:2] if path[:2] == ("spark", "conf") else path


def _strict_loader() -> Any:
    """YAML hides a key given twice, and the last one wins; here that is an error."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            plain = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
            names = [self.construct_object(key, deep=True) for key in plain]
            texts = [str(name) for name in names]
            twice = sorted({text for text in texts if texts.count(text) > 1})
            if twice:
                raise yaml.constructor.ConstructorError(None, None, f"key {twice[0]!r} is given twice", node.start_mark)
            return super().construct_mapping(node, deep)

    return Loader


def merged(low: Tree, high: Tree, problems: list[Problem], path: Path = ()) -> Tree:
    """``high`` over ``low``, key by key. A map written as one variable is taken apart for that."""
    result = dict(low)
    for key, node in high.items():
        here, below = (*path, key), result.get(key)
        if isinstance(node, Given) and isinstance(below, dict) and not _is_group(here):
            result[key] = below | _apart(node, here, problems)
        elif isinstance(node, dict) and isinstance(below, dict):
            result[key] = merged(below, node, problems, here)
        else:
            result[key] = node
    return result


def _is_group(path: Path) -> bool:
    return len(path) == 1 or (path[0] in DICT_GROUPS and len(path) == 2)  # noqa: PLR2004 - group and slug


def _apart(given: Given, path: Path, problems: list[Problem]) -> Tree:
    try:
        return {key: Given(value, given.variable, given.origin) for key, value in split_map(given.value).items()}
    except ValueError:
        problems.append(Problem(given.variable, ".".join(path), _told(path, given.value), "a=b,c=d or a JSON object"))
        return {}
