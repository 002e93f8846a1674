"""Any environment, file and command line is parsed, or reported by its names; never as a traceback."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from cdf_replicator.cli.app import app
from cdf_replicator.settings import ConfigurationError, Settings, load
from cdf_replicator.settings.effective import effective
from tests.unit.example_sinks import GOOD

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("example_sinks")
with_fixtures = hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
"""The fixtures change nothing between two examples."""

SECRET = "hunter2-of-the-fuzz"

names = st.sampled_from(
    [
        *GOOD,
        "CDF_SPARK__CONF",
        "CDF_ROUTES__ORDERS_STORE__INDEX",
        "CDF_ROUTES__ORDERS_LOG__RENAME",
        "CDF_ROUTES__X__TABLE",
        "CDF_ROUTES_INCLUDE",
        "CDF_TABLES__ORDERS__MAX_BYTES_PER_TRIGGER",
        "CDF_TABLES__ORDERS__STARTING_TIMESTAMP",
        "CDF_TABLES",
        "CDF_TABLES__ORDERS",
        "CDF_",
        "CDF___",
        "CDF_SINKS__STORE__LIMITS",
        "CDF_SINKS__STORE__PASSWORD_FILE",
        "CDF_HTTP__TOKEN_FILE",
    ],
) | st.text(min_size=1).map(lambda text: "CDF_" + text)
values = st.text() | st.sampled_from(
    ["[" * 5000, "{" * 5000, "[]", "{}", "null", '{"a": {}}', "a=b=c", "=", ",", "\udcff", "9" * 500]
)

keys = st.sampled_from(
    ["tables", "sinks", "routes", "orders", "keys", "path", "store", "type", "http", "conf", "state_path"]
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates() | st.binary(max_size=5)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys | st.text() | st.integers(), inner, max_size=4),
    max_leaves=12,
)
files = (
    trees.map(lambda tree: yaml.safe_dump(tree, allow_unicode=True).encode()) | st.binary() | st.text().map(str.encode)
)


def read(environ: dict[str, str]) -> Settings | None:
    """None if it was refused, each problem by the name of a variable, and printable."""
    try:
        return load(environ)
    except ConfigurationError as error:
        refusal = error
    assert refusal.problems
    assert all(problem.variable.startswith("CDF_") for problem in refusal.problems)
    assert SECRET not in str(refusal)
    str(refusal).encode("utf-8")
    return None


@given(st.dictionaries(names, values, max_size=5))
@with_fixtures
def test_any_environment_is_loaded_or_refused_by_variable(changes: dict[str, str]) -> None:
    read(GOOD | {"CDF_SINKS__STORE__PASSWORD": SECRET} | changes)


@given(files, st.booleans())
@with_fixtures
def test_any_file_is_loaded_or_refused_by_variable(tmp_path: Path, content: bytes, alone: bool) -> None:
    file = tmp_path / "cdf.yaml"
    file.write_bytes(content)
    found = read((GOOD if not alone else {}) | {"CDF_CONFIG_FILE": str(file)})
    if found is not None:
        effective(found)


NUMBERS = st.from_regex(
    r"[-+]?([0-9]{1,6}|[0-9]{0,3}\.[0-9]{0,3}([eE][-+]?[0-9]{1,3})?|inf|nan)| ?[a-z0-9] ?", fullmatch=True
)
ASKED: dict[str, tuple[st.SearchStrategy[str], Any, Any]] = {
    "CDF_TRIGGER_SECONDS": (NUMBERS, float, lambda settings: settings.trigger_seconds),
    "CDF_SHUTDOWN_SECONDS": (NUMBERS, float, lambda settings: settings.shutdown_seconds),
    "CDF_HTTP__BIND_PORT": (NUMBERS, float, lambda settings: settings.http.bind_port),
    "CDF_DELIVERY__STALL_SECONDS": (NUMBERS, float, lambda settings: settings.delivery.stall_seconds),
    "CDF_DELIVERY__MAX_REJECTED_SHARE": (NUMBERS, float, lambda settings: settings.delivery.max_rejected_share),
    "CDF_VERIFY__EVERY_HOURS": (NUMBERS, float, lambda settings: settings.verify.every_hours),
    "CDF_TABLES__ORDERS__STARTING_VERSION": (
        NUMBERS,
        float,
        lambda settings: settings.tables["orders"].starting_version,
    ),
    "CDF_STATE_PATH": (st.text(min_size=1), str, lambda settings: settings.state_path),
    "CDF_TABLES__ORDERS__PATH": (st.text(min_size=1), str, lambda settings: settings.tables["orders"].path),
}


@pytest.mark.parametrize("name", ASKED)
@given(data=st.data())
@with_fixtures
def test_loaded_settings_equal_the_given_settings(name: str, data: st.DataObject) -> None:
    texts, meaning, held = ASKED[name]
    text = data.draw(texts)
    assume(text.strip())  # an empty variable counts as not set
    settings = read(GOOD | {name: text})
    if settings is not None:
        value = held(settings)
        assert value == meaning(text.strip())
        assert not isinstance(value, float) or math.isfinite(value)


words = st.sampled_from(
    [
        *("run", "replay", "resync", "changes", "enable", "validate", "status", "dead-letters", "config", "version"),
        *(
            "list",
            "show",
            "redrive",
            "discard",
            "env",
            "schema",
            "--once",
            "--table",
            "--yes",
            "--from",
            "--to",
            "--key",
        ),
        *("--starting-version", "--ending-version", "--startingVersion", "--format", "--limit", "--url", "--dry-run"),
        *("orders", "orders_log", "orders=3", "12", "-1", "json", "latest", "--help", "-h", "--", "abcdef123456"),
    ]
) | st.text(max_size=12)


@given(st.lists(words, max_size=6))
@with_fixtures
def test_any_arguments_end_with_a_documented_exit_code(given_words: list[str]) -> None:
    """The configuration lacks its sinks, so that nothing goes so far as to start."""
    environ = {"CDF_STATE_PATH": "/state", "CDF_TABLES__ORDERS__PATH": "/orders", "CDF_TABLES__ORDERS__KEYS": "id"}
    assume(not {"changes", "enable", "status"} & set(given_words))  # these need no sink
    result = CliRunner(env=environ).invoke(app, given_words)
    refused = isinstance(result.exception, ConfigurationError)  # exit code 78, once it leaves the command
    assert refused or result.exit_code in {0, 2}, (result.output, result.exception)
    assert "Traceback" not in result.output
