"""Tests of the example files: they load, are equal, and the JSON Schema accepts the same settings as the service."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml

from cdf_replicator.settings import ConfigurationError, Settings, load
from cdf_replicator.settings.json_schema import json_schema
from docs.generate.readme import ROOT
from tests.support.json_schema import matches
from tests.unit.example_sinks import GOOD

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLES = ROOT / "docs/examples"
MOUNTED = "/run/secrets"


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """Return a folder with the secrets that a pod or a container mounts at ``MOUNTED``."""
    folder = tmp_path / "secrets"
    folder.mkdir()
    for name in ("es-api-key", "redis-password", "http-token"):
        (folder / name).write_text("hunter2")
    return folder


def loaded_from_yaml(secrets: Path, text: str | None = None) -> Settings:
    file = secrets / "cdf.yaml"
    file.write_text((text or (EXAMPLES / "orders.yaml").read_text()).replace(MOUNTED, str(secrets)))
    return load({"CDF_CONFIG_FILE": str(file)})


def loaded_from_env(secrets: Path) -> Settings:
    """Load the file as ``docker run --env-file`` does: a line is a variable, and its value is the text after ``=``."""
    text = (EXAMPLES / "orders.env").read_text().replace(MOUNTED, str(secrets))
    lines = [line.partition("=") for line in text.splitlines() if line and not line.startswith("#")]
    return load({name: value for name, _, value in lines})


def test_both_examples_are_complete_and_equal(secrets: Path) -> None:
    file, variables = loaded_from_yaml(secrets), loaded_from_env(secrets)
    assert list(file.routes) == ["orders_audit", "orders_cache", "orders_search", "stock_cache"]
    for name in ("state_path", "trigger_seconds", "shutdown_seconds", "http", "spark", "log", "delivery", "tables"):
        assert getattr(file, name) == getattr(variables, name), name
    assert (file.sinks, file.routes) == (variables.sinks, variables.routes)


def test_the_examples_set_something_in_every_group(secrets: Path) -> None:
    groups = {path[0] for path in loaded_from_yaml(secrets).origins}
    assert {"state_path", "tables", "sinks", "routes", "http", "delivery", "spark", "log"} <= groups


def test_schema_accepts_the_example() -> None:
    schema = json_schema()
    assert matches(yaml.safe_load((EXAMPLES / "orders.yaml").read_text()), schema, schema)


@pytest.mark.usefixtures("example_sinks")
@pytest.mark.parametrize(
    "text",
    [
        "{tables: {orders: {keys: id, sinks: 'log,store'}}}",
        "{sinks: {store: {hosts: 'http://a:1,http://b:2', retries: '3', headers: 'a=b,c=d'}}}",
        "{sinks: {store: {headers: [a=b], limits: {rows: '5'}}}}",
        "{sinks: {store: {limits: {token_file: TOKEN}}}}",
        "{sinks: {store: {limits: }}, http: , routes: , log: {level: }}",
        "{routes: {orders_store: {rename: [a=b]}}}",
        "{routes: {orders_store: {rename: {a: b, c: }}}}",
        '{routes: {orders_store: {computed: \'{"a": "b + 1"}\'}}}',
        "{routes: {orders_store: {enrich: {c: {path: /c, 'on': x=y, columns: [a, b=c]}}}}}",
        "{http: {bind_port: '9177'}, trigger_seconds: '0.5', tables: {orders: {include_preimages: 'Yes'}}}",
        "{tables: {orders: {include_preimages: 1, allow_schema_change: '12'}}}",
        "{log: {level: INFO, format: JSON}, routes: {orders_store: {schema_changes: Add}}}",
        "{spark: {conf: {spark.task.cpus: 2, spark.a: true, spark.b: x}}}",
        '{spark: {conf: \'{"spark.a": "b"}\'}}',
    ],
)
def test_schema_accepts_settings_that_the_service_accepts(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text("hunter2")
    document = text.replace("TOKEN", str(tmp_path / "token"))
    file = tmp_path / "cdf.yaml"
    file.write_text(document)
    given = yaml.safe_load(document)
    settings = load(
        {name: value for name, value in GOOD.items() if not set_in(given, name)} | {"CDF_CONFIG_FILE": str(file)}
    )
    assert settings.routes
    schema = json_schema()
    assert matches(given, schema, schema)


def set_in(document: object, variable: str) -> bool:
    for part in variable.removeprefix("CDF_").lower().split("__"):
        if not isinstance(document, dict) or part not in document:
            return False
        document = document[part]
    return True


@pytest.mark.usefixtures("example_sinks")
@pytest.mark.parametrize(
    "text",
    [
        "{http: {bind_port: many}}",
        "{http: {prot: 9102}}",
        "{tables: {others: {keys: [1]}}}",
        "{tables: {orders: {include_preimages: perhaps}}}",
        "{tables: {Orders: {path: /x}}}",
        "{log: {level: loud}}",
        "{routes: {orders_store: {rename: [a]}}}",
        "{spark: {conf: {spark.a: [x]}}}",
        "{sinks: {store: {limits: {row: 1}}}}",
    ],
)
def test_schema_refuses_settings_that_the_service_refuses(tmp_path: Path, text: str) -> None:
    file = tmp_path / "cdf.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError):
        load(GOOD | {"CDF_CONFIG_FILE": str(file)})
    schema = json_schema()
    assert not matches(json.loads(json.dumps(yaml.safe_load(text))), schema, schema)
