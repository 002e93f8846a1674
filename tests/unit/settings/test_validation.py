"""A problem of the configuration names the variable, the path, the value unless it may be a secret, and the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cdf_replicator.settings import ConfigurationError, load
from cdf_replicator.settings.parsing.errors import ConfigProblem
from tests.unit.example_sinks import GOOD

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("example_sinks")

HIDDEN = "********"


def problems(changes: dict[str, str]) -> list[ConfigProblem]:
    with pytest.raises(ConfigurationError) as caught:
        load(GOOD | changes)
    return list(caught.value.problems)


@pytest.mark.parametrize(
    ("variable", "value", "path", "given", "expected"),
    [
        ("SINKS__STORE__HOSTS", '["a",]', "sinks.store.hosts", """'["a",]'""", "a,b or a JSON array"),
        ("SINKS__STORE__HEADERS", "a", "sinks.store.headers", "'a'", "a=b,c=d or a JSON object"),
        ("SINKS__STORE__RETRIES", "many", "sinks.store.retries", "'many'", "a whole number"),
        ("SINKS__STORE__RETRIES", "-1", "sinks.store.retries", "'-1'", "greater than or equal to 0"),
        ("SINKS__STORE__LIMITS", "x", "sinks.store.limits", HIDDEN, "its settings one by one"),
        ("VERIFY__EVERY_HOURS", "0", "verify.every_hours", "'0'", "greater than 0"),
        ("VERIFY__EVERY_HOURS", "daily", "verify.every_hours", "'daily'", "a number"),
        ("SPARK__CONF", "[1]", "spark.conf", HIDDEN, "a JSON object"),
        ("HTTP", "1", "http", HIDDEN, "its settings one by one: CDF_HTTP__HOST=..."),
        ("SPARK", "y", "spark", HIDDEN, "its settings one by one: CDF_SPARK__MASTER=..."),
        ("TABLES__ORDERS__STARTING_VERSION", "1.5", "tables.orders.starting_version", "'1.5'", "a whole number"),
        ("TABLES__ORDERS__SINKS", "log,log", "tables.orders.sinks", "'log,log'", "each name once"),
        (
            "TABLES__orders__PATH",
            "/o",
            "tables.orders.path",
            "'/o'",
            "either this or CDF_TABLES__ORDERS__PATH, not both",
        ),
        ("ROUTES_INCLUDE", "zzz", "routes_include", "'zzz'", "names of routes; known: orders_log, orders_store"),
        ("ROUTES_INCLUDE", "[]", "routes_include", "an empty list", "at least one route"),
        ("HTTP__TOKEN_FILE", "/absent", "http.token_file", "'/absent'", "a readable file; No such file or directory"),
    ],
)
def test_problem_of_a_value_is_reported_once_with_given_and_expected(
    variable: str, value: str, path: str, given: str, expected: str
) -> None:
    assert problems({f"CDF_{variable}": value}) == [ConfigProblem(f"CDF_{variable}", path, given, expected)]


@pytest.mark.parametrize(
    ("text", "variable", "path", "given", "expected"),
    [
        ("http: {bind_port: {a: 1}}", "HTTP__BIND_PORT", "http.bind_port", "a group of values", "a whole number"),
        ("http: {token_file: {a: b}}", "HTTP__TOKEN_FILE", "http.token_file", None, "the path of a file"),
        ("spark: {master: 1.5}", "SPARK__MASTER", "spark.master", "1.5 (in {file})", "a text, in quotes"),
        ("spark: {master: true}", "SPARK__MASTER", "spark.master", "true (in {file})", "a text, in quotes"),
        ("spark: {master: [a]}", "SPARK__MASTER", "spark.master", "a (in {file})", "a text"),
        (
            "http: {token: x, token_file: /absent}",
            "HTTP__TOKEN_FILE",
            "http.token_file",
            "'/absent' (in {file})",
            "either this or CDF_HTTP__TOKEN, not both",
        ),
    ],
)
def test_problem_of_the_file_names_the_overriding_variable(
    tmp_path: Path, text: str, variable: str, path: str, given: str | None, expected: str
) -> None:
    file = tmp_path / "cdf.yaml"
    file.write_text(text)
    displayed = given and given.format(file=file)
    assert problems({"CDF_CONFIG_FILE": str(file)}) == [ConfigProblem(f"CDF_{variable}", path, displayed, expected)]


@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "byte order mark"])
@pytest.mark.parametrize(
    ("variable", "text"), [("CDF_SINKS__STORE__PASSWORD", " two words "), ("CDF_HTTP__TOKEN", "token")]
)
def test_secret_of_a_file_is_its_text_without_trailing_newlines(
    tmp_path: Path, variable: str, text: str, mark: str
) -> None:
    file = tmp_path / "secret"
    file.write_bytes(f"{mark}{text}\r\n\n".encode())
    settings = load(GOOD | {f"{variable}_FILE": str(file)})
    secret = settings.sinks["store"].password if "SINKS" in variable else settings.http.token
    assert secret.get_secret_value() == text


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("CDF_STATE", "no such setting; did you mean CDF_STATE_PATH?"),
        ("CDF_TABLE__ORDERS__PATH", "no such setting; did you mean CDF_TABLES__ORDERS__PATH?"),
        ("CDF_X__Y", "no such setting; see: cdf-replicator config env"),
        ("CDF_QQQQ", "no such setting; see: cdf-replicator config env"),
    ],
)
def test_unknown_setting_is_reported_without_its_value(variable: str, expected: str) -> None:
    path = variable.removeprefix("CDF_").lower().replace("__", ".")
    hidden = "a value, hidden because its name is unknown"
    assert problems({variable: "hunter2"}) == [ConfigProblem(variable, path, hidden, expected)]
