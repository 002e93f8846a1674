"""Settings are loaded as given, or every problem is reported and nothing runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cdf_replicator.settings
from cdf_replicator.settings import ConfigurationError, load
from cdf_replicator.settings.parsing.errors import ConfigProblem
from tests.unit.example_sinks import GOOD

pytestmark = pytest.mark.usefixtures("example_sinks")


def problems(changes: dict[str, str], without: tuple[str, ...] = ()) -> list[ConfigProblem]:
    with pytest.raises(ConfigurationError) as caught:
        load({name: value for name, value in (GOOD | changes).items() if name not in without})
    return list(caught.value.problems)


def the_problem(changes: dict[str, str], without: tuple[str, ...] = ()) -> ConfigProblem:
    (problem,) = problems(changes, without)
    return problem


def test_the_environment_alone_is_enough() -> None:
    settings = load(GOOD)
    assert settings.state_path == "/state"
    assert list(settings.routes) == ["orders_log", "orders_store"]
    assert settings.routes["orders_store"].keys == ("id",)
    assert settings.routes["orders_store"].source.location == "s3a://lake/orders"


def test_defaults_are_those_of_the_documentation() -> None:
    settings = load(GOOD)
    assert (settings.trigger_seconds, settings.shutdown_seconds) == (1, 110)
    assert (settings.http.host, settings.http.bind_port, settings.http.token) == ("127.0.0.1", 9102, None)
    assert (settings.delivery.retry_seconds, settings.delivery.max_rejected_share) == (30, 0.01)
    assert settings.verify.every_hours is None
    assert (settings.log.level, settings.log.format) == ("info", None)
    assert (settings.spark.master, settings.spark.conf, settings.spark.jars) == ("local[*]", {}, None)
    source = settings.routes["orders_log"].source
    assert (source.starting_version, source.max_files_per_trigger, source.include_preimages) == (None, 1000, False)


def test_every_option_of_a_table_reaches_its_routes() -> None:
    settings = load(
        GOOD
        | {
            "CDF_TABLES__ORDERS__STARTING_VERSION": "12",
            "CDF_TABLES__ORDERS__MAX_FILES_PER_TRIGGER": "500",
            "CDF_TABLES__ORDERS__MAX_BYTES_PER_TRIGGER": "256m",
            "CDF_TABLES__ORDERS__INCLUDE_PREIMAGES": "true",
        },
    )
    source = settings.routes["orders_log"].source
    assert (source.starting_version, source.max_files_per_trigger) == (12, 500)
    assert (source.max_bytes_per_trigger, source.include_preimages) == ("256m", True)


def test_a_table_may_be_named_in_the_catalog() -> None:
    changed = {name: value for name, value in GOOD.items() if not name.endswith("ORDERS__PATH")}
    source = load(changed | {"CDF_TABLES__ORDERS__NAME": "main.sales.orders"}).routes["orders_log"].source
    assert (source.path, source.name, source.location) == (None, "main.sales.orders", "main.sales.orders")


@pytest.mark.parametrize("text", ["id,region", " id , region ", '["id", "region"]'])
def test_a_list_is_comma_separated_or_json(text: str) -> None:
    assert load(GOOD | {"CDF_TABLES__ORDERS__KEYS": text}).routes["orders_store"].keys == ("id", "region")


def test_list_in_settings_of_a_sink_is_comma_separated() -> None:
    settings = load(GOOD | {"CDF_SINKS__STORE__HOSTS": "http://a:1, http://[::1]:2"})
    assert settings.sinks["store"].hosts == ("http://a:1", "http://[::1]:2")


@pytest.mark.parametrize("text", ["a=b,c=d", '{"a": "b", "c": "d"}'])
def test_a_map_is_pairs_or_json(text: str) -> None:
    assert load(GOOD | {"CDF_ROUTES__ORDERS_LOG__RENAME": text}).routes["orders_log"].rename == {"a": "b", "c": "d"}
    assert load(GOOD | {"CDF_SINKS__STORE__HEADERS": text}).sinks["store"].headers == {"a": "b", "c": "d"}


def test_spark_settings_keep_their_case_and_become_text() -> None:
    conf = '{"spark.driver.memory": "2g", "spark.hadoop.fs.S3A.x": true, "spark.task.cpus": 2}'
    assert load(GOOD | {"CDF_SPARK__CONF": conf}).spark.conf == {
        "spark.driver.memory": "2g",
        "spark.hadoop.fs.S3A.x": "true",
        "spark.task.cpus": "2",
    }


def test_groups_inside_a_sink_nest() -> None:
    assert load(GOOD | {"CDF_SINKS__STORE__LIMITS__ROWS": "7"}).sinks["store"].limits.rows == 7


def test_an_empty_variable_counts_as_not_set() -> None:
    assert load(GOOD | {"CDF_HTTP__BIND_PORT": "", "CDF_SINKS__STORE__RETRIES": " "}).http.bind_port == 9102


def test_a_sink_is_made_of_its_settings() -> None:
    sink = load(GOOD).sink("store")
    assert type(sink).__name__ == "StoreSink"
    assert sink.settings.hosts == ("http://a:9200",)


@pytest.mark.parametrize(
    "start", ["2026-01-31", "2026-01-31 12:00:00", "2026-01-31T12:00:00.123Z", "2026-01-31T12:00+02:00"]
)
def test_starting_timestamp_is_a_date_or_a_time(start: str) -> None:
    settings = load(GOOD | {"CDF_TABLES__ORDERS__STARTING_TIMESTAMP": start})
    assert settings.routes["orders_log"].source.starting_timestamp == start


def test_all_problems_are_reported_at_once() -> None:
    found = problems(
        {
            "CDF_HTTP__BIND_PORT": "http",
            "CDF_TABLES__ORDERS__MAX_FILES_PER_TRIGGER": "0",
            "CDF_SINKS__STORE__RETRIES": "many",
            "CDF_ROUTES__ORDERS_STORE__COLUMS": "id",
            "CDF_LOG__LEVEL": "loud",
        },
        without=("CDF_STATE_PATH", "CDF_SINKS__LOG__PATH"),
    )
    assert {problem.variable for problem in found} == {
        "CDF_STATE_PATH",
        "CDF_HTTP__BIND_PORT",
        "CDF_LOG__LEVEL",
        "CDF_TABLES__ORDERS__MAX_FILES_PER_TRIGGER",
        "CDF_SINKS__LOG__PATH",
        "CDF_SINKS__STORE__RETRIES",
        "CDF_ROUTES__ORDERS_STORE__COLUMS",
    }


def test_a_problem_names_variable_yaml_path_value_and_remedy() -> None:
    problem = the_problem({"CDF_HTTP__BIND_PORT": "http"})
    assert problem == ConfigProblem("CDF_HTTP__BIND_PORT", "http.bind_port", "'http'", "a whole number")
    text = str(ConfigurationError([problem]))
    assert text.startswith("configuration: 1 problem\n")
    assert "CDF_HTTP__BIND_PORT  (YAML: http.bind_port)" in text


def test_empty_configuration_has_two_problems() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load({})
    assert [problem.variable for problem in caught.value.problems] == ["CDF_STATE_PATH", "CDF_TABLES__<TABLE>__PATH"]


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("CDF_STATEPATH", "CDF_STATE_PATH"),
        ("CDF_LOG_LEVEL", "CDF_LOG__LEVEL"),
        ("CDF_HTTP_BIND_PORT", "CDF_HTTP__BIND_PORT"),
        ("CDF_TABLE__ORDERS__PATH", "CDF_TABLES__ORDERS__PATH"),
        ("CDF_TABLES__ORDERS__KEY", "CDF_TABLES__ORDERS__KEYS"),
        ("CDF_SINKS__STORE__HOST", "CDF_SINKS__STORE__HOSTS"),
        ("CDF_SINKS__STORE__PASWORD", "CDF_SINKS__STORE__PASSWORD"),
        ("CDF_SINKS__STORE__LIMITS__ROW", "CDF_SINKS__STORE__LIMITS__ROWS"),
        ("CDF_ROUTES__ORDERS_STORE__INDX", "CDF_ROUTES__ORDERS_STORE__INDEX"),
        ("CDF_ROUTES__ORDERS_STORE__FILTERS", "CDF_ROUTES__ORDERS_STORE__FILTER"),
    ],
)
def test_an_unknown_variable_names_the_nearest_known_one(variable: str, nearest: str) -> None:
    problem = the_problem({variable: "secret-perhaps"})
    assert problem.variable == variable
    assert problem.expected == f"no such setting; did you mean {nearest}?"
    assert "secret-perhaps" not in str(problem)


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("CDF_TABLES_ORDERS_PATH", "CDF_TABLES__ORDERS__PATH"),
        ("CDF_TABLES__ORDERS_PATH", "CDF_TABLES__ORDERS__PATH"),
        ("CDF_TABLES_ORDERS__PATH", "CDF_TABLES__ORDERS__PATH"),
        ("CDF_TABLES_BIG_ORDERS_MAX_FILES_PER_TRIGGER", "CDF_TABLES__BIG_ORDERS__MAX_FILES_PER_TRIGGER"),
        ("CDF_SINKS_STORE_HOSTS", "CDF_SINKS__STORE__HOSTS"),
        ("CDF_SINKS_STORE_PASSWORD_FILE", "CDF_SINKS__STORE__PASSWORD_FILE"),
        ("CDF_ROUTES_ORDERS_STORE_INDEX", "CDF_ROUTES__ORDERS_STORE__INDEX"),
        ("CDF_ROUTES_ORDERS_STORE_ENRICH_CARRIERS_ON", "CDF_ROUTES__ORDERS_STORE__ENRICH__CARRIERS__ON"),
        ("CDF_TABLES_ORDERS_PTH", "CDF_TABLES__<TABLE>__<SETTING>"),
    ],
)
def test_single_underscores_between_parts_are_reported(variable: str, meant: str) -> None:
    problem = the_problem({variable: "secret-perhaps"})
    assert problem.variable == variable
    assert problem.expected == f"two underscores between the parts of its name; did you mean {meant}?"
    assert "secret-perhaps" not in str(problem) or variable.startswith("CDF_TABLES__")


@pytest.mark.parametrize("option", ["KEY_TEMPLATE", "SKIP_UNCHANGED"])
def test_unknown_option_lists_the_options_of_the_route(option: str) -> None:
    problem = the_problem({f"CDF_ROUTES__ORDERS_STORE__{option}": "x"})
    assert problem.expected.endswith(
        "known here: COLUMNS, COMPUTED, ENRICH, FILTER, INDEX, KEYS, LAYOUT, RENAME, SCHEMA_CHANGES, SINK, TABLE"
    )


@pytest.mark.parametrize(
    "variable",
    [
        "CDF_PORT",
        "CDF_PORT_9102_TCP",
        "CDF_PORT_9102_TCP_ADDR",
        "CDF_SERVICE_HOST",
        "CDF_SERVICE_PORT_HTTP",
        "CDF_REPLICATOR_SERVICE_HOST",
        "CDF_REPLICATOR_SERVICE_PORT",
        "CDF_REPLICATOR_SERVICE_PORT_HTTP",
        "CDF_REPLICATOR_PORT",
        "CDF_REPLICATOR_PORT_9102_TCP_PROTO",
    ],
)
def test_variables_injected_by_kubernetes_are_ignored(variable: str) -> None:
    assert load(GOOD | {variable: "tcp://10.0.0.1:9102"}).state_path == "/state"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CDF_REPLICATOR_PORT", "9102"),
        ("CDF_REPLICATOR_PORT", "http://10.0.0.1:9102"),
        ("CDF_REPLICATOR_PORT", "at tcp://10.0.0.1:9102"),
        ("CDF_REPLICATOR_PORTS", "tcp://10.0.0.1:9102"),
        ("CDF_REPLICATOR_PORT_HTTP_TCP", "tcp://10.0.0.1:9102"),
        ("CDF_REPLICATOR_PORT_9102_HTTP", "tcp://10.0.0.1:9102"),
        ("CDF_REPLICATOR_SERVICE_NAME", "x"),
        ("CDF_STATE_SERVICE", "x"),
    ],
)
def test_variable_that_resembles_one_of_kubernetes_is_unknown(variable: str, value: str) -> None:
    problem = the_problem({variable: value})
    assert problem.variable == variable
    assert problem.expected.startswith("no such setting")


def test_option_of_a_sink_is_not_ignored_as_injected() -> None:
    problem = the_problem({"CDF_SINKS__STORE__SERVICE_PORT": "1"})
    assert problem.variable == "CDF_SINKS__STORE__SERVICE_PORT"


def test_two_spellings_of_one_variable_are_an_error() -> None:
    problem = the_problem({"CDF_TABLES__orders__PATH": "/other"})
    assert "not both" in problem.expected


def test_a_value_where_a_group_is_expected_is_an_error() -> None:
    found = problems({"CDF_HTTP": "9102"})
    assert [problem.expected for problem in found] == ["its settings one by one: CDF_HTTP__HOST=..."]


@pytest.mark.parametrize("slug", ["a__b", "-x", "ä", "a b", "x_", "a" * 101])
def test_slug_has_only_plain_characters(tmp_path: Path, slug: str) -> None:
    file = tmp_path / "cdf.yaml"  # a shell would not accept the name
    file.write_text(json.dumps({"tables": {slug: {"path": "/x", "sinks": ["log"]}}}))
    problem = the_problem({"CDF_CONFIG_FILE": str(file)})
    assert problem.path.startswith("tables.")
    assert "a-z, 0-9" in problem.expected


@pytest.mark.parametrize(
    ("changes", "variable", "words"),
    [
        ({"CDF_TABLES__ORDERS__NAME": "x"}, "CDF_TABLES__ORDERS__PATH", "exactly one of PATH"),
        (
            {"CDF_TABLES__ORDERS__STARTING_VERSION": "1", "CDF_TABLES__ORDERS__STARTING_TIMESTAMP": "2026-01-01"},
            "CDF_TABLES__ORDERS__STARTING_VERSION",
            "at most one",
        ),
        ({"CDF_TABLES__ORDERS__STARTING_VERSION": "latest"}, "CDF_TABLES__ORDERS__STARTING_VERSION", "would lose"),
        ({"CDF_TABLES__ORDERS__STARTING_VERSION": "-1"}, "CDF_TABLES__ORDERS__STARTING_VERSION", "greater than"),
        ({"CDF_TABLES__ORDERS__STARTING_TIMESTAMP": "soon"}, "CDF_TABLES__ORDERS__STARTING_TIMESTAMP", "a date or"),
        ({"CDF_TABLES__ORDERS__STARTING_TIMESTAMP": "2026-02-30"}, "CDF_TABLES__ORDERS__STARTING_TIMESTAMP", "a date"),
        ({"CDF_TABLES__ORDERS__MAX_BYTES_PER_TRIGGER": "lots"}, "CDF_TABLES__ORDERS__MAX_BYTES_PER_TRIGGER", "256m"),
        ({"CDF_TABLES__ORDERS__MAX_BYTES_PER_TRIGGER": "0"}, "CDF_TABLES__ORDERS__MAX_BYTES_PER_TRIGGER", "above 0"),
        (
            {"CDF_TABLES__ORDERS__INCLUDE_PREIMAGES": "perhaps"},
            "CDF_TABLES__ORDERS__INCLUDE_PREIMAGES",
            "true or false",
        ),
        ({"CDF_TABLES__ORDERS__KEYS": "id,ID"}, "CDF_TABLES__ORDERS__KEYS", "once"),
        ({"CDF_TABLES__ORDERS__KEYS": '["id", 1]'}, "CDF_TABLES__ORDERS__KEYS", "a text"),
        ({"CDF_TRIGGER_SECONDS": "0"}, "CDF_TRIGGER_SECONDS", "greater than 0"),
        ({"CDF_TRIGGER_SECONDS": "nan"}, "CDF_TRIGGER_SECONDS", "finite"),
        ({"CDF_DELIVERY__MAX_REJECTED_SHARE": "1.5"}, "CDF_DELIVERY__MAX_REJECTED_SHARE", "less than or equal to 1"),
        (
            {"CDF_SINKS__LOG__TYPE": "kafka"},
            "CDF_SINKS__LOG__TYPE",
            "installed: delta_audit, delta_features, delta_replica, elasticsearch, example",
        ),
        (
            {"CDF_SINKS__LOG__TYPE": "example_absent"},
            "CDF_SINKS__LOG__TYPE",
            "needs the Python package 'no_such_client', which is not installed; run: pip install 'example-sinks[example_absent]'",
        ),
        ({"CDF_SINKS__LOG__TYPE": "example_renamed"}, "CDF_SINKS__LOG__TYPE", "has no attribute 'OldSink'"),
        ({"CDF_SINKS__LOG__TYPE": "example_moved"}, "CDF_SINKS__LOG__TYPE", "'example-sinks' has no such module"),
        ({"CDF_SPARK__CONF": '{"a": '}, "CDF_SPARK__CONF", "a JSON object"),
        ({"CDF_SPARK__CONF": '{"a": "1", "a": "2"}'}, "CDF_SPARK__CONF", "a JSON object"),
        ({"CDF_SPARK__CONF__SPARK": "x"}, "CDF_SPARK__CONF__SPARK", "one JSON object"),
        ({"CDF_ROUTES__ORDERS_LOG__RENAME": "a"}, "CDF_ROUTES__ORDERS_LOG__RENAME", "a=b,c=d"),
        ({"CDF_ROUTES__ORDERS_STORE__INDEX": "bad*"}, "CDF_ROUTES__ORDERS_STORE__INDEX", "an index name without *"),
        ({"PROMETHEUS_MULTIPROC_DIR": "/tmp/x"}, "PROMETHEUS_MULTIPROC_DIR", "not set"),
        ({"CDF_ROUTES_INCLUDE": "orders_lug"}, "CDF_ROUTES_INCLUDE", "did you mean 'orders_log'?"),
        ({"CDF_ROUTES_INCLUDE": "[]"}, "CDF_ROUTES_INCLUDE", "at least one"),
        ({"CDF_HTTP__TOKEN": "hunter 2"}, "CDF_HTTP__TOKEN", "ASCII characters without blanks"),
        ({"CDF_HTTP__READ_TOKEN": "hünter2"}, "CDF_HTTP__READ_TOKEN", "ASCII characters without blanks"),
    ],
)
def test_impossible_values_are_reported(changes: dict[str, str], variable: str, words: str) -> None:
    problem = the_problem(changes)
    assert problem.variable == variable
    assert words in problem.expected


def test_a_sink_needs_a_type() -> None:
    problem = problems({}, without=("CDF_SINKS__LOG__TYPE",))[0]
    assert problem.variable == "CDF_SINKS__LOG__TYPE"
    assert "installed: " in problem.expected


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ({"spark.sql.files.ignoreMissingFiles": "true"}, "missing change file"),
        ({"spark.sql.files.ignoreCorruptFiles": True}, "corrupt change file"),
        ({"spark.speculation": "TRUE"}, "second copy"),
        ({"spark.remote": "sc://x"}, "foreachBatch"),
        ({"spark.master": "local"}, "CDF_SPARK__MASTER"),
        ({"spark.sql.session.timeZone": "Europe/Berlin"}, "UTC"),
        ({"spark.sql.legacy.timeParserPolicy": "LEGACY"}, "CORRECTED"),
        ({"spark.sql.ansi.enabled": False}, "true, since the text of a decimal"),
        ({"spark.sql.legacy.charVarcharAsString": "true"}, "type char"),
        ({"spark.sql.readSideCharPadding": "false"}, "type char"),
        ({"spark.sql.legacy.parquet.returnNullStructIfAllFieldsMissing": "true"}, "struct"),
        ({"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS"}, "TIMESTAMP_MICROS"),
        ({"spark.sql.extensions": "x"}, "Delta's own"),
    ],
)
def test_spark_settings_that_break_correctness_are_refused(conf: dict[str, object], words: str) -> None:
    problem = the_problem({"CDF_SPARK__CONF": json.dumps(conf)})
    assert problem.variable == "CDF_SPARK__CONF"
    assert words in problem.expected
    assert next(iter(conf)) in problem.path


def test_spark_settings_equal_to_fixed_values_are_accepted() -> None:
    conf = {
        "spark.speculation": "false",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.legacy.timeParserPolicy": "corrected",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.session.timeZone": "UTC",
    }
    assert load(GOOD | {"CDF_SPARK__CONF": json.dumps(conf)}).spark.conf == conf


@pytest.mark.parametrize(
    "option",
    [
        "EXCLUDE_REGEX",
        "FAIL_ON_DATA_LOSS",
        "IGNORE_DELETES",
        "IGNOREDELETES",
        "IGNORE_CHANGES",
        "SKIP_CHANGE_COMMITS",
        "WITH_EVENT_TIME_ORDER",
    ],
)
def test_reader_options_that_lose_changes_are_refused_with_the_reason(option: str) -> None:
    problem = the_problem({f"CDF_TABLES__ORDERS__{option}": "true"})
    assert problem.variable == f"CDF_TABLES__ORDERS__{option}"
    assert problem.expected.startswith("not set: ")


def secret_file(folder: Path, text: str) -> str:
    file = folder / "secret"
    file.write_text(text)
    return str(file)


def test_secret_can_be_in_a_file(tmp_path: Path) -> None:
    path = secret_file(tmp_path, "hunter2\n")
    settings = load(
        GOOD
        | {
            "CDF_SINKS__STORE__PASSWORD_FILE": path,
            "CDF_SINKS__STORE__LIMITS__TOKEN_FILE": path,
            "CDF_HTTP__TOKEN_FILE": path,
        },
    )
    assert settings.sinks["store"].password.get_secret_value() == "hunter2"
    assert settings.sinks["store"].limits.token.get_secret_value() == "hunter2"
    assert settings.http.token is not None
    assert settings.http.token.get_secret_value() == "hunter2"
    assert settings.origin(("http", "token")) == f"secret file {path}"


def test_spark_settings_can_be_in_a_secret_file(tmp_path: Path) -> None:
    path = secret_file(tmp_path, '{"spark.hadoop.fs.s3a.secret.key": "hunter2"}')
    assert load(GOOD | {"CDF_SPARK__CONF_FILE": path}).spark.conf == {"spark.hadoop.fs.s3a.secret.key": "hunter2"}


def test_field_that_ends_in_file_is_no_secret_file() -> None:
    assert load(GOOD | {"CDF_SINKS__STORE__CA_FILE": "/ca.pem"}).sinks["store"].ca_file == "/ca.pem"


def test_only_secrets_can_be_in_a_secret_file() -> None:
    assert the_problem({"CDF_SINKS__STORE__HOSTS_FILE": "/x"}).variable == "CDF_SINKS__STORE__HOSTS_FILE"


def test_token_that_no_client_can_send_is_refused_without_its_value(tmp_path: Path) -> None:
    problem = the_problem({"CDF_HTTP__TOKEN_FILE": secret_file(tmp_path, "hunter2 \n")})
    assert (problem.variable, problem.path) == ("CDF_HTTP__TOKEN_FILE", "http.token")
    assert "without blanks" in problem.expected
    assert "hunter" not in str(problem)


def test_secret_together_with_its_file_is_refused(tmp_path: Path) -> None:
    path = secret_file(tmp_path, "hunter2")
    problem = the_problem({"CDF_HTTP__TOKEN": "hunter3", "CDF_HTTP__TOKEN_FILE": path})
    assert "not both" in problem.expected
    assert "hunter" not in str(problem)


@pytest.mark.parametrize(("content", "words"), [(None, "No such file"), ("\n", "not empty")])
def test_empty_secret_file_is_refused(tmp_path: Path, content: str | None, words: str) -> None:
    path = str(tmp_path / "absent") if content is None else secret_file(tmp_path, content)
    problem = the_problem({"CDF_HTTP__TOKEN_FILE": path})
    assert (problem.variable, problem.given) == ("CDF_HTTP__TOKEN_FILE", repr(path))
    assert words in problem.expected


def test_secret_that_is_not_text_is_reported_without_its_value(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"\xff\xfe")
    assert "not UTF-8" in the_problem({"CDF_HTTP__TOKEN_FILE": str(tmp_path / "secret")}).expected


def test_secrets_are_in_no_message() -> None:
    text = str(
        ConfigurationError(
            problems(
                {
                    "CDF_SINKS__STORE__PASSWORD": "hunter2",
                    "CDF_SINKS__STORE__PASSWORDD": "hunter2",
                    "CDF_SINKS__STORE__HOSTS": '["http://u:hunter2@a", 1]',
                    "CDF_SINKS__STORE__LIMITS": "hunter2",
                    "CDF_SPARK__CONF": '{"spark.hadoop.fs.s3a.secret.key": ["hunter2"]}',
                    "CDF_TABLES__ORDERS__PATH": "https://u:hunter2@lake/orders",
                    "CDF_TABLES__ORDERS__NAME": "x",
                    "CDF_HTTP__TOKEN_FILE": "hunter2",
                    "CDF_SINKS__OTHER__PASSWORD_FILE": "hunter2",
                },
            ),
        ),
    )
    assert "hunter2" not in text
    assert "not the secret itself" in text
    assert "u:********@" in text


@pytest.mark.parametrize("hosts", ["user:hunter2@a:9200", "http://user:the hunter2@a:9200"])
def test_credentials_in_a_malformed_address_are_in_no_message(hosts: str) -> None:
    found = problems({"CDF_SINKS__STORE__HOSTS": json.dumps([hosts, 1])})
    assert found
    assert "hunter2" not in str(ConfigurationError(found))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("CDF_HTTP", "CDF_HTTP__TOKEN"),
        ("CDF_HTTP__TOKEN", "CDF_http__token"),
        ("CDF_SPARK", "CDF_SPARK__SECRET"),
        ("CDF_HTTPS__TOKEN", "CDF_https__token"),
    ],
)
def test_secret_that_is_given_twice_is_in_no_message(one: str, other: str) -> None:
    found = problems({one: "hunter2", other: "hunter3"})
    assert any("not both" in problem.expected for problem in found)
    assert "hunter" not in str(ConfigurationError(found))


def with_file(folder: Path, text: str, **changes: str) -> dict[str, str]:
    file = folder / "cdf.yaml"
    file.write_text(text)
    return {"CDF_CONFIG_FILE": str(file), **changes}


WHOLE_FILE = """
state_path: /state
tables:
  orders:
    path: /orders
    keys: [id, region]
    sinks: log
    starting_timestamp: 2026-01-31
sinks:
  log: {type: example_log, path: /log}
routes:
  orders_log:
    rename: {id: key}
spark:
  conf: {spark.driver.memory: 2g, spark.task.cpus: 2}
http:
"""


def test_file_alone_is_enough(tmp_path: Path) -> None:
    settings = load(with_file(tmp_path, WHOLE_FILE))
    route = settings.routes["orders_log"]
    assert (route.keys, route.rename) == (("id", "region"), {"id": "key"})
    assert route.source.starting_timestamp == "2026-01-31"
    assert settings.spark.conf == {"spark.driver.memory": "2g", "spark.task.cpus": "2"}


def test_the_environment_wins_key_by_key(tmp_path: Path) -> None:
    environ = with_file(
        tmp_path,
        WHOLE_FILE,
        CDF_TABLES__ORDERS__PATH="/elsewhere",
        CDF_SPARK__CONF='{"spark.driver.memory": "4g"}',
        CDF_ROUTES__ORDERS_LOG__RENAME="region=r",
    )
    settings = load(environ)
    route = settings.routes["orders_log"]
    assert (route.source.path, route.keys) == ("/elsewhere", ("id", "region"))
    assert settings.spark.conf == {"spark.driver.memory": "4g", "spark.task.cpus": "2"}
    assert route.rename == {"id": "key", "region": "r"}
    file = environ["CDF_CONFIG_FILE"]
    assert settings.origin(("tables", "orders", "path")) == "environment"
    assert settings.origin(("tables", "orders", "keys")) == file
    assert settings.origin(("spark", "conf", "spark.driver.memory")) == "environment"
    assert settings.origin(("spark", "conf", "spark.task.cpus")) == file
    assert settings.origin(("trigger_seconds",)) == "default"


@pytest.mark.parametrize(
    ("variable", "given"), [("CDF_SPARK__CONF", "(hidden)"), ("CDF_ROUTES__ORDERS_LOG__RENAME", "'{broken'")]
)
def test_broken_map_over_a_map_of_the_file_is_one_problem(tmp_path: Path, variable: str, given: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(with_file(tmp_path, WHOLE_FILE, **{variable: "{broken"}))
    (problem,) = caught.value.problems
    assert (problem.variable, problem.given, problem.expected) == (variable, given, "a=b,c=d or a JSON object")


@pytest.mark.parametrize("variable", ["CDF_ROUTES__ORDERS_LOG__RENAME", "CDF_ROUTES__ORDERS_LOG__RENAME__REGION"])
def test_the_environment_wins_key_by_key_over_pairs_in_a_list(tmp_path: Path, variable: str) -> None:
    listed = WHOLE_FILE.replace("rename: {id: key}", "rename: [id=key, region=old]")
    assert listed != WHOLE_FILE
    value = "region=r" if variable.endswith("RENAME") else "r"
    assert load(with_file(tmp_path, listed, **{variable: value})).routes["orders_log"].rename == {
        "id": "key",
        "region": "r",
    }


def test_the_environment_wins_key_by_key_over_the_text_of_spark_settings(tmp_path: Path) -> None:
    text = """spark: {conf: '{"spark.driver.memory": "2g", "spark.task.cpus": "2"}'}"""
    environ = with_file(tmp_path, text, CDF_SPARK__CONF='{"spark.driver.memory": "4g"}')
    assert load(GOOD | environ).spark.conf == {"spark.driver.memory": "4g", "spark.task.cpus": "2"}


def test_a_list_of_addresses_is_replaced_as_a_whole(tmp_path: Path) -> None:
    text = "sinks: {store: {hosts: ['http://a:9200/?x=1', 'http://b:9200/?x=1']}}"
    environ = with_file(tmp_path, text, CDF_SINKS__STORE__HOSTS="http://c:9200/?x=1")
    assert load(GOOD | environ).sinks["store"].hosts == ("http://c:9200/?x=1",)


def test_file_may_merge_mappings_and_names_the_line_of_a_repeated_key(tmp_path: Path) -> None:
    tables = "tables:\n  orders: &orders {path: /orders, keys: id, sinks: log}\n  items: {<<: *orders, path: /items}\n"
    settings = load(
        with_file(tmp_path, f"state_path: /state\nsinks: {{log: {{type: example_log, path: /log}}}}\n{tables}")
    )
    route = settings.routes["items_log"]
    assert (route.source.path, route.keys) == ("/items", ("id",))
    assert "line 2" in the_problem(with_file(tmp_path, "a: 1\nb: {c: 1, c: 2}")).expected


def test_a_secret_file_of_the_environment_beats_a_secret_in_the_file(tmp_path: Path) -> None:
    path = secret_file(tmp_path, "from-the-file")
    environ = with_file(tmp_path, WHOLE_FILE + "  token: from-yaml\n", CDF_HTTP__TOKEN_FILE=path)
    token = load(environ).http.token
    assert token is not None
    assert token.get_secret_value() == "from-the-file"


def test_secret_of_the_environment_beats_a_secret_file_named_in_yaml(tmp_path: Path) -> None:
    environ = with_file(tmp_path, WHOLE_FILE + "  token_file: /absent\n", CDF_HTTP__TOKEN="from-env")
    token = load(environ).http.token
    assert token is not None
    assert token.get_secret_value() == "from-env"


@pytest.mark.parametrize("conf", ["{spark.driver.memory: 2g, spark.task.cpus: 2}", '\'{"spark.task.cpus": "2"}\''])
def test_secret_file_of_the_environment_overrides_a_map_key_by_key(tmp_path: Path, conf: str) -> None:
    path = secret_file(tmp_path, '{"spark.driver.memory": "4g", "spark.hadoop.fs.s3a.secret.key": "hunter2"}')
    environ = with_file(tmp_path, f"spark: {{conf: {conf}}}", CDF_SPARK__CONF_FILE=path)
    settings = load(GOOD | environ)
    expected = {"spark.driver.memory": "4g", "spark.task.cpus": "2", "spark.hadoop.fs.s3a.secret.key": "hunter2"}
    assert settings.spark.conf == expected
    assert settings.origin(("spark", "conf", "spark.driver.memory")) == f"secret file {path}"
    assert settings.origin(("spark", "conf", "spark.task.cpus")) == environ["CDF_CONFIG_FILE"]


def test_map_of_the_environment_overrides_a_secret_file_key_by_key(tmp_path: Path) -> None:
    path = secret_file(tmp_path, '{"spark.driver.memory": "2g", "spark.hadoop.fs.s3a.secret.key": "hunter2"}')
    conf = '{"spark.driver.memory": "4g", "spark.task.cpus": "2"}'
    environ = GOOD | with_file(tmp_path, f"spark: {{conf_file: {path}}}", CDF_SPARK__CONF=conf)
    expected = {"spark.driver.memory": "4g", "spark.task.cpus": "2", "spark.hadoop.fs.s3a.secret.key": "hunter2"}
    assert load(environ).spark.conf == expected


@pytest.mark.parametrize("broken", ["file", "variable"])
def test_broken_map_beside_a_secret_file_is_one_problem(tmp_path: Path, broken: str) -> None:
    path = secret_file(tmp_path, "{hunter2" if broken == "file" else "{}")
    conf = "{hunter2" if broken == "variable" else "{}"
    problem = the_problem(with_file(tmp_path, f"spark: {{conf_file: {path}}}", CDF_SPARK__CONF=conf))
    assert problem.variable == ("CDF_SPARK__CONF_FILE" if broken == "file" else "CDF_SPARK__CONF")
    assert (problem.path, problem.expected) == ("spark.conf", "a JSON object")
    assert "hunter" not in str(problem)


def test_map_and_its_secret_file_in_one_source_are_refused(tmp_path: Path) -> None:
    given = {"CDF_SPARK__CONF": '{"spark.task.cpus": "2"}', "CDF_SPARK__CONF_FILE": secret_file(tmp_path, "{}")}
    for environ in (given, given | with_file(tmp_path, "spark: {conf: {spark.driver.memory: 2g}}")):
        assert the_problem(environ).expected == "either this or CDF_SPARK__CONF, not both"


def test_a_problem_in_the_file_names_the_file_and_the_variable(tmp_path: Path) -> None:
    environ = with_file(tmp_path, WHOLE_FILE + "  bind_port: many\n")
    with pytest.raises(ConfigurationError) as caught:
        load(environ)
    (problem,) = caught.value.problems
    assert (problem.variable, problem.path) == ("CDF_HTTP__BIND_PORT", "http.bind_port")
    assert problem.given == f"'many' (in {environ['CDF_CONFIG_FILE']})"


def test_a_password_of_digits_in_the_file_is_to_be_quoted(tmp_path: Path) -> None:
    environ = with_file(tmp_path, "sinks: {store: {password: 12345678}}")
    problem = the_problem(environ)
    assert (problem.variable, problem.expected) == ("CDF_SINKS__STORE__PASSWORD", "a text, in quotes")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "a readable YAML file"),
        ("- a", "a mapping"),
        ("tables: {a: {path: /x}, a: {path: /y}}", "given twice"),
        ("state_path: !!python/object:os.system x", "a readable YAML file"),
        ("a: &a\n  b: *a\n", "recursive"),
        ("state_path: &a [*a]", "recursive"),
        ("routes: {r: {computed: &a [{x: *a}]}}", "recursive"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_problem(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(with_file(tmp_path, text))
    (problem,) = caught.value.problems
    assert problem.variable == "CDF_CONFIG_FILE"
    assert words in problem.expected


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ("@hunter2", "line 3, column 15: found character '@'"),
        ("%hunter2", "line 3, column 15: found character '%'"),
        ("*hunter2", "line 3, column 15: an alias"),
        ("!hunter2 x", "line 3, column 15: an alias, an anchor or a tag"),
        ("!hunter2!x y", "line 3, column 15: an alias, an anchor or a tag"),
        ("&hunter2 [x, &hunter2 y]", "line 3, column 28: an alias, an anchor or a tag"),
        ("'hunter2", "line 4, column 1: found unexpected end"),
        ('"\\hunter2"', "line 3, column 17: found unknown escape character"),
        ("hunter2: x", "line 3, column 22: mapping values"),
        ("!!int hunter2", "line 3, column 15: not a valid value"),
        ("!!bool hunter2", "line 3, column 15: not a valid value"),
        ("!!timestamp hunter2", "line 3, column 15: not a valid value"),
        ("2026-13-45", "line 3, column 15: not a valid value"),
    ],
)
def test_an_error_of_the_file_names_the_place_and_quotes_no_secret(tmp_path: Path, value: str, place: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(with_file(tmp_path, f"sinks:\n  cache:\n    password: {value}\n"))
    assert f"a readable YAML file; {place}" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_file_that_is_not_there_is_one_problem() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load({"CDF_CONFIG_FILE": "/absent.yaml"})
    (problem,) = caught.value.problems
    assert "No such file" in problem.expected


def test_empty_file_counts_as_no_file(tmp_path: Path) -> None:
    assert load(GOOD | with_file(tmp_path, "")).state_path == "/state"


def test_settings_load_without_spark() -> None:
    code = (
        "import sys; from cdf_replicator.settings import load, ConfigurationError\n"
        "try: load({})\nexcept ConfigurationError: pass\n"
        "assert not {'pyspark', 'py4j', 'yaml', 'rich', 'typer'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_no_sink_is_named_in_the_settings() -> None:
    for file in Path(cdf_replicator.settings.__file__).parent.rglob("*.py"):
        assert not re.search(r"redis|elasticsearch|delta_audit", file.read_text(), re.IGNORECASE), file
