"""The reference lists every setting, and the output of ``config`` every value in force."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from cdf_replicator.settings import load
from cdf_replicator.settings.effective import effective
from cdf_replicator.settings.json_schema import json_schema
from cdf_replicator.settings.redact import HIDDEN, masked, sensitive_conf, shown
from cdf_replicator.settings.reference import reference

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("example_sinks")

DESIGNED = """
CDF_STATE_PATH CDF_TRIGGER_SECONDS CDF_SHUTDOWN_SECONDS CDF_CONFIG_FILE CDF_ROUTES_INCLUDE
CDF_TABLES__<TABLE>__PATH CDF_TABLES__<TABLE>__NAME CDF_TABLES__<TABLE>__KEYS CDF_TABLES__<TABLE>__SINKS
CDF_TABLES__<TABLE>__STARTING_VERSION CDF_TABLES__<TABLE>__STARTING_TIMESTAMP
CDF_TABLES__<TABLE>__MAX_FILES_PER_TRIGGER CDF_TABLES__<TABLE>__MAX_BYTES_PER_TRIGGER
CDF_TABLES__<TABLE>__INCLUDE_PREIMAGES CDF_TABLES__<TABLE>__ON_DUPLICATE_KEYS CDF_TABLES__<TABLE>__ALLOW_SCHEMA_CHANGE
CDF_ROUTES__<ROUTE>__TABLE CDF_ROUTES__<ROUTE>__SINK CDF_ROUTES__<ROUTE>__KEYS CDF_ROUTES__<ROUTE>__FILTER
CDF_ROUTES__<ROUTE>__COLUMNS CDF_ROUTES__<ROUTE>__RENAME CDF_ROUTES__<ROUTE>__COMPUTED
CDF_ROUTES__<ROUTE>__ENRICH__<NAME>__PATH CDF_ROUTES__<ROUTE>__ENRICH__<NAME>__NAME
CDF_ROUTES__<ROUTE>__ENRICH__<NAME>__ON CDF_ROUTES__<ROUTE>__ENRICH__<NAME>__COLUMNS
CDF_ROUTES__<ROUTE>__SCHEMA_CHANGES
CDF_HTTP__HOST CDF_HTTP__BIND_PORT CDF_HTTP__TOKEN CDF_HTTP__READ_TOKEN CDF_SPARK__MASTER CDF_SPARK__CONF CDF_SPARK__JARS
CDF_LOG__LEVEL CDF_LOG__FORMAT CDF_VERIFY__EVERY_HOURS CDF_DELIVERY__RETRY_SECONDS CDF_DELIVERY__MAX_REJECTED_SHARE
CDF_DELIVERY__MAX_REMOVED_SHARE CDF_DELIVERY__STALL_SECONDS
"""


def test_every_name_of_the_design_has_a_description() -> None:
    service = {entry.variable: entry for entry in reference() if "type" not in entry.group}
    assert sorted(service) == sorted(DESIGNED.split())
    assert all(entry.meaning and entry.type for entry in service.values())


def test_installed_sink_adds_its_settings_and_options() -> None:
    entries = {(entry.group, entry.variable): entry for entry in reference()}
    hosts = entries["Sinks of type example_store", "CDF_SINKS__<SINK>__HOSTS"]
    assert (hosts.type, hosts.default, hosts.meaning) == ("list: a,b or JSON", "required", "Addresses.")
    rows = entries["Sinks of type example_store", "CDF_SINKS__<SINK>__LIMITS__ROWS"]
    assert (rows.type, rows.default) == ("whole number", "100")
    password = entries["Sinks of type example_store", "CDF_SINKS__<SINK>__PASSWORD"]
    assert "_FILE" in password.type
    layout = entries["Routes to sinks of type example_store", "CDF_ROUTES__<ROUTE>__LAYOUT"]
    assert layout.default == "json"


def test_a_sink_whose_client_is_missing_does_not_hide_the_others() -> None:
    assert not any("example_absent" in entry.group for entry in reference())


def test_the_schema_names_every_group_and_sink() -> None:
    schema = json_schema()
    assert {"state_path", "tables", "sinks", "routes", "http", "spark", "log", "delivery"} <= set(schema["properties"])
    types = [
        kind["properties"]["type"]["const"] for kind in schema["properties"]["sinks"]["additionalProperties"]["anyOf"]
    ]
    assert "example_log" in types
    assert "index" in schema["properties"]["routes"]["additionalProperties"]["properties"]
    assert schema["additionalProperties"] is False


def test_every_reference_of_the_schema_has_a_target() -> None:
    schema = json_schema()
    references = re.findall(r'"\$ref": "#/\$defs/([^"]+)"', json.dumps(schema))
    assert "sink_example_store_Limits" in references
    assert set(references) <= set(schema["$defs"])


def test_a_secrets_file_is_in_the_schema() -> None:
    assert "token_file" in json_schema()["properties"]["http"]["properties"]


def test_settings_do_not_print_their_secrets() -> None:
    settings = load(ENVIRON)
    assert "hunter2" not in repr(settings) + repr(settings.spark)


ENVIRON = {
    "CDF_STATE_PATH": "/state",
    "CDF_TABLES__ORDERS__PATH": "/orders",
    "CDF_TABLES__ORDERS__KEYS": "id",
    "CDF_TABLES__ORDERS__SINKS": "store",
    "CDF_SINKS__STORE__TYPE": "example_store",
    "CDF_SINKS__STORE__HOSTS": "http://user:hunter2@a:9200",
    "CDF_SINKS__STORE__PASSWORD": "hunter2",
    "CDF_SPARK__CONF": '{"spark.hadoop.fs.s3a.secret.key": "hunter2", "spark.driver.memory": "2g"}',
    "CDF_ROUTES__ORDERS_STORE__INDEX": "o",
}


def test_effective_values_are_shown_with_origin_and_without_secrets(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("hunter2")
    values = effective(load(ENVIRON | {"CDF_HTTP__TOKEN_FILE": str(token)}))
    assert "hunter2" not in str(values)
    found = {value.path: (value.value, value.origin) for value in values}
    assert found["state_path"] == ("/state", "environment")
    assert found["trigger_seconds"] == ("1", "default")
    assert found["sinks.store.hosts"] == (f"http://user:{HIDDEN}@a:9200", "environment")
    assert found["sinks.store.password"] == (HIDDEN, "environment")
    assert found["sinks.store.limits.rows"] == ("100", "default")
    assert found["http.token"] == (HIDDEN, f"secret file {token}")
    assert found["spark.conf[spark.hadoop.fs.s3a.secret.key]"] == (HIDDEN, "environment")
    assert found["spark.conf[spark.driver.memory]"] == ("2g", "environment")
    assert found["routes.orders_store.table"] == ("orders", "the table's SINKS")
    assert found["routes.orders_store.index"] == ("o", "environment")


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("redis://cache:6379/0", "redis://cache:6379/0"),
        ("redis://:pw@cache", f"redis://:{HIDDEN}@cache"),
        ("redis://user:p:w@cache", f"redis://user:{HIDDEN}@cache"),
        ("redis://user:p/w@cache", f"redis://user:{HIDDEN}@cache"),
        ("https://token@host/x", f"https://{HIDDEN}@host/x"),
        ("http://a:1,http://u:pw@b:2", f"http://a:1,http://u:{HIDDEN}@b:2"),
        ("http://elastic:pa@ss@es:9200", f"http://elastic:{HIDDEN}@es:9200"),
        ("http://u:p,w@a:1,http://u:p,@w@b:2", f"http://u:{HIDDEN}@a:1,http://u:{HIDDEN}@b:2"),
        ('{"a":"http://a:1","b":"c@d"}', '{"a":"http://a:1","b":"c@d"}'),
        ("redis://c?password=p,w&db=1", f"redis://c?password={HIDDEN}&db=1"),
        ("redis://c?password=pw&db=1", f"redis://c?password={HIDDEN}&db=1"),
        ("jdbc:sqlserver://db;user=u;password=pw", f"jdbc:sqlserver://db;user=u;password={HIDDEN}"),
        ("jdbc:postgresql://db/x?user=u&sslpassword=pw", f"jdbc:postgresql://db/x?user=u&sslpassword={HIDDEN}"),
        ("-Xss4m -Dhttps.proxyPassword=pw -Da=1", f"-Xss4m -Dhttps.proxyPassword={HIDDEN} -Da=1"),
        ("-Da.password='p w'x -Db=2", f"-Da.password={HIDDEN} -Db=2"),
        ('"-Da.password=p w" -Db=2', f'"-Da.password={HIDDEN}" -Db=2'),
        ("abfss://container@account.dfs.core.windows.net/x", "abfss://container@account.dfs.core.windows.net/x"),
        ("s3a://lake/orders", "s3a://lake/orders"),
        ("a@b", "a@b"),
    ],
)
def test_credentials_in_addresses_are_masked(text: str, safe: str) -> None:
    assert masked(text) == safe


@pytest.mark.parametrize(
    ("name", "sensitive"),
    [
        ("spark.hadoop.fs.s3a.encryption.key", True),
        ("spark.hadoop.fs.s3a.server-side-encryption.key", True),
        ("spark.hadoop.fs.azure.encryption.encoded.client-provided-key", True),
        ("spark.hadoop.fs.azure.client-provided-encryption-key", True),
        ("spark.io.encryption.keySizeBits", False),
        ("spark.driver.memory", False),
    ],
)
def test_names_of_spark_settings_with_secrets_are_known(name: str, sensitive: bool) -> None:
    assert sensitive_conf(name) == sensitive


def test_long_values_are_cut_and_stay_on_one_line() -> None:
    text = shown("x\n" * 1000)
    assert "\n" not in text
    assert len(text) < 300
