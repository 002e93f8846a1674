"""Read raw values from the environment and from an optional YAML file of the same shape."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import SkipValidation, create_model
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from cdf_replicator.settings.models import FIXED_GROUPS, General
from cdf_replicator.settings.parsing.raw import (
    ENVIRONMENT,
    NEST,
    PREFIX,
    Path,
    RawTree,
    RawValue,
    split_value,
    variable_of,
)
from cdf_replicator.settings.redact import SECRET_GROUPS, masked, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.fields import FieldInfo

    from cdf_replicator.settings.parsing.errors import Problems

CONFIG_FILE: Final = "CDF_CONFIG_FILE"
DICT_GROUPS: Final = ("tables", "sinks", "routes")
GROUPS: Final = (*DICT_GROUPS, *FIXED_GROUPS)
_UNVALIDATED: Final = (Annotated[dict[str, Any], SkipValidation], None)

# Variables that Kubernetes sets in every pod for a Service called "cdf" or "cdf-something".
_INJECTED: Final = re.compile(
    r"CDF_(PORT|PORT_.*|SERVICE_.*|.+_SERVICE_(HOST|PORT|PORT_.+)|.+_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)",
)
_INJECTED_ADDRESS: Final = re.compile(r"(tcp|udp|sctp)://.*")
_PAIR: Final = re.compile(r"[^=:/]+=.+", re.DOTALL)
"""An item of a map that is written as a list. An address with parameters is none."""
_QUOTING: Final = ("found undefined", "second occurrence", "could not determine a constructor")
"""Beginnings of the messages of PyYAML about a text of the file, which most of them quote."""


def injected(name: str, value: str) -> bool:
    """Return whether Kubernetes set this variable for a Service, so that it is no setting of this program."""
    if name[len(PREFIX) :].lower().split(NEST)[0] in GROUPS:
        return False
    if name.endswith("_PORT") and _INJECTED_ADDRESS.fullmatch(value):
        return True
    return _INJECTED.fullmatch(name) is not None


def read_sources(environ: Mapping[str, str], problems: Problems) -> RawTree:
    """Return all given values; the environment overrides the file key by key. An unknown first name is not split.

    pydantic-settings splits names and merges the sources. It does not validate, since it would report only the first problem
    and lose the origins: it handles every value as a ``RawValue``.
    """
    location = environ.get(CONFIG_FILE, "").strip()
    file = yaml_file(location, problems) if location else {}
    variables = {path: _apart(path, value, file, problems) for path, value in _variables(environ, problems).items()}

    class Sources(BaseSettings):
        model_config = SettingsConfigDict(
            env_prefix=PREFIX, env_nested_delimiter=NEST, case_sensitive=True, extra="allow"
        )

        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *_: PydanticBaseSettingsSource, **__: PydanticBaseSettingsSource
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return Environment(settings_cls, variables), InitSettingsSource(settings_cls, file)

    fields: dict[str, Any] = dict.fromkeys((*General.model_fields, *GROUPS), _UNVALIDATED)
    everything = create_model("Everything", __base__=Sources, **fields)()
    unknown = {NEST.join(path): value for path, value in variables.items() if path[0] not in fields}
    return {**{name: value for name, value in everything if value is not None}, **unknown}


class Environment(EnvSettingsSource):
    """The variables by path, as a source of pydantic-settings."""

    def __init__(self, settings_cls: type[BaseSettings], variables: Mapping[Path, Any]) -> None:
        super().__init__(settings_cls)
        self.env_vars = {PREFIX + NEST.join(path): value for path, value in variables.items()}

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:  # noqa: ARG002
        """Return the value unparsed: the model of the group, which may be a sink's, parses lists and maps."""
        return value


def _variables(environ: Mapping[str, str], problems: Problems) -> dict[Path, RawValue]:
    """Return every ``CDF_`` variable by path; an empty one counts as not set.

    A variable whose path lies within another's is a problem.
    """
    result: dict[Path, RawValue] = {}
    for name in sorted(environ, key=str.upper):  # sorts a group before its members
        path, value = tuple(name[len(PREFIX) :].lower().split(NEST)), environ[name].strip()
        if not name.startswith(PREFIX) or name == CONFIG_FILE or not value or injected(name, value):
            continue
        upwards = (path[:length] for length in range(len(path), 0, -1))
        rival = next((result[above] for above in upwards if above in result), None)
        if path[:2] == ("spark", "conf") and path[2:]:
            expected = 'CDF_SPARK__CONF={"spark.driver.memory": "2g"}: one JSON object, since Spark\'s names have dots'
            problems.add(("spark.conf",), _displayed(path, value), expected, name)
        elif rival is not None:
            expected = f"either this or {rival.variable}, not both"
            problems.add(path, _displayed(path, value), expected, name)
        else:
            result[path] = RawValue(value, name, ENVIRONMENT)
    return result


def _apart(path: Path, given: RawValue, file: RawTree, problems: Problems) -> RawTree | RawValue:
    """Split a map that is written as one variable if the file has that map too, so that it overrides key by key.

    The map of the file is split in place if it is written as a list ``[a=b]``, or as the text of ``spark.conf``. Another
    text is replaced as a whole, since only the model of its group determines whether it is a map.
    """
    below: RawTree | RawValue = file
    for depth, part in enumerate(path, start=1):
        above, below = below, below.get(part, {}) if isinstance(below, dict) else {}
        if isinstance(above, dict) and isinstance(below, RawValue) and _is_map(path[:depth], below.value):
            with suppress(ValueError):  # the model of the group reports it
                above[part] = below = split_value(below)
    group = len(path) == 1 or (path[0] in DICT_GROUPS and len(path) == 2)  # noqa: PLR2004 - group and slug
    if group or not below or isinstance(below, RawValue):
        return given
    try:
        return split_value(given)
    except ValueError:
        problems.add(path, _displayed(path, given.value), "a=b,c=d or a JSON object", given.variable)
        return {}


def _is_map(path: Path, value: Any) -> bool:
    if path == ("spark", "conf"):
        return isinstance(value, str)
    return isinstance(value, list) and all(isinstance(item, str) and _PAIR.fullmatch(item) for item in value)


def _displayed(path: Path, value: str) -> str:
    """Return a value for a message; hide it where its field, known or not, may be a secret."""
    known = path[0] in (*General.model_fields, *GROUPS)
    return repr(shown(value)) if known and path[0] not in SECRET_GROUPS else "(hidden)"


def yaml_file(location: str, problems: Problems) -> RawTree:
    """Return the file of ``CDF_CONFIG_FILE`` as a tree; a key without a value counts as not set."""
    import yaml

    try:
        document = yaml.load(FilePath(location).read_text("utf-8"), Loader=_strict_loader())  # noqa: S506 - a SafeLoader
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        problems.add((), repr(location), f"a readable YAML file; {_fault(error)}", CONFIG_FILE)
        return {}
    if document is None:
        return {}
    if not isinstance(document, dict):
        problems.add((), repr(location), "a YAML file that holds a mapping", CONFIG_FILE)
        return {}
    return _grown(document, (), masked(location))


def _fault(error: Exception) -> str:
    """Return what is wrong with a file, and where, without the text at that place: it may be a secret."""
    import yaml

    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    if not isinstance(error, yaml.MarkedYAMLError):
        return " ".join(str(error).split())
    mark, problem = error.problem_mark or error.context_mark, error.problem or error.context or ""
    if problem.startswith(_QUOTING):
        problem = (
            "an alias, an anchor or a tag that is not valid here; enclose a text that begins with *, & or ! in quotes"
        )
    place = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
    return f"{place}{problem}"


def _grown(mapping: dict[Any, Any], path: Path, origin: str) -> RawTree:
    tree: RawTree = {}
    for key, value in mapping.items():
        here = (*path, str(key))
        if isinstance(value, dict):
            tree[str(key)] = _grown(value, here, origin)
        elif value is not None:
            tree[str(key)] = RawValue(value, variable_of(_variable_path(here)), origin)
    return tree


def _variable_path(path: Path) -> Path:
    return path[:2] if path[:2] == ("spark", "conf") else path


def _strict_loader() -> Any:
    """Return a YAML loader that refuses a repeated key, of which plain YAML takes the last one, and an alias within its own value."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_document(self, node: yaml.Node) -> Any:
            return self.construct_object(node, deep=True)  # else an alias could make a value that contains itself

        def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep)
            except (ValueError, TypeError, KeyError, AttributeError) as error:  # a date 2026-13-45, a tag !!bool
                problem = "not a valid value of its type; enclose a text in quotes"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            for key, _ in node.value:
                if key.tag == "tag:yaml.org,2002:bool":  # YAML 1.1 reads the key "on" as true; here it is a name
                    key.tag = "tag:yaml.org,2002:str"
            plain = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
            names = [self.construct_object(key, deep=True) for key in plain]
            texts = [str(name) for name in names]
            twice = sorted({text for text in texts if texts.count(text) > 1})
            if twice:
                raise yaml.constructor.ConstructorError(None, None, f"key {twice[0]!r} is given twice", node.start_mark)
            return super().construct_mapping(node, deep)

    return Loader
