"""Each event of Python and of the JVM is a single line."""

from __future__ import annotations

import io
import json
import logging
import threading
import warnings

import pytest
import structlog

from cdf_replicator import __version__
from cdf_replicator.monitoring import logs


@pytest.fixture(autouse=True)
def _logging_as_before():
    root = logging.getLogger()
    handlers = root.handlers[:]
    levels = {logger: logger.level for logger in (root, *map(logging.getLogger, (*logs.QUIET, *logs.SAID)))}
    yield
    root.handlers[:] = handlers
    for logger, level in levels.items():
        logger.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def fail(error: Exception) -> None:
    raise error


def test_a_line_has_the_names_of_the_elastic_common_schema() -> None:
    logs.configure("info", "json", stream := io.StringIO())
    structlog.get_logger("cdf_replicator.runtime.supervisor").info("batch delivered", written=5)
    (line,) = lines(stream)
    assert line.pop("@timestamp").endswith("Z")
    assert line == {
        "log.level": "info",
        "message": "batch delivered",
        "log.logger": "cdf_replicator.runtime.supervisor",
        "service.name": "cdf-replicator",
        "service.version": __version__,
        "written": 5,
    }


def test_error_line_has_type_message_and_stack() -> None:
    logs.configure("info", "json", stream := io.StringIO())
    try:
        fail(ValueError("no\nway"))
    except ValueError:
        structlog.get_logger("x").exception("route failed")
    (line,) = lines(stream)
    assert line["log.level"] == "error"
    assert line["error.type"] == "builtins.ValueError"
    assert line["error.message"] == "no\nway"
    assert "Traceback" in line["error.stack_trace"]
    assert "exc_info" not in line


def test_line_of_a_library_has_the_same_fields() -> None:
    logs.configure("info", "json", stream := io.StringIO())
    logging.getLogger("some.library").warning("%s of %s", 1, 2, extra={"shard": 3})
    (line,) = lines(stream)
    assert (line["message"], line["log.logger"], line["log.level"]) == ("1 of 2", "some.library", "warning")
    assert line["shard"] == 3
    assert line["service.name"] == "cdf-replicator"


def test_exception_of_a_library_is_logged() -> None:
    logs.configure("info", "json", stream := io.StringIO())
    try:
        fail(KeyError("k"))
    except KeyError:
        logging.getLogger("some.library").exception("lost")
    (line,) = lines(stream)
    assert line["error.type"] == "builtins.KeyError"


def test_bound_fields_are_on_every_line_of_their_thread_only() -> None:
    logs.configure("info", "json", stream := io.StringIO())
    with structlog.contextvars.bound_contextvars(route="orders_search", batch_id=7):
        structlog.get_logger("a").info("one")
        logging.getLogger("b").info("two")
        other = threading.Thread(target=lambda: structlog.get_logger("c").info("three"))
        other.start()
        other.join()
    structlog.get_logger("a").info("four")
    assert [line.get("route") for line in lines(stream)] == ["orders_search", "orders_search", None, None]


def test_levels_below_the_configured_level_are_not_logged() -> None:
    logs.configure("warning", "json", stream := io.StringIO())
    structlog.get_logger("a").info("quiet")
    structlog.get_logger("a").warning("loud")
    assert [line["message"] for line in lines(stream)] == ["loud"]


@pytest.mark.parametrize(("level", "count"), [("info", 0), ("debug", len(logs.SAID))])
def test_library_lines_of_reported_errors_are_logged_only_at_debug_level(level: str, count: int) -> None:
    logs.configure(level, "json", stream := io.StringIO())
    for name in logs.SAID:
        logging.getLogger(name).error("There was an exception")
    assert len(lines(stream)) == count


@pytest.mark.parametrize("name", logs.QUIET)
def test_verbose_libraries_log_from_warning_on(name: str) -> None:
    logs.configure("debug", "json", stream := io.StringIO())
    logging.getLogger(name).info("quiet")
    logging.getLogger(name).warning("loud")
    assert [line["message"] for line in lines(stream)] == ["loud"]


def test_a_warning_becomes_a_line() -> None:
    logs.configure("info", "json", stream := io.StringIO())
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        logging.captureWarnings(capture=True)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        logging.captureWarnings(capture=False)
    assert "DeprecationWarning: old" in lines(stream)[0]["message"]


def test_credentials_in_an_address_never_reach_a_line() -> None:
    logs.configure("info", "json", stream := io.StringIO())
    try:
        fail(OSError("no answer from redis://app:hunter2@cache:6379"))
    except OSError:
        structlog.get_logger("a").exception("lost https://u:hunter2@es:9200", url="rediss://:hunter2@c")
    assert "hunter2" not in stream.getvalue()
    logs.configure("info", "text", stream := io.StringIO())
    structlog.get_logger("a").info("lost https://u:hunter2@es:9200", url="rediss://:hunter2@c")
    assert "hunter2" not in stream.getvalue()
    assert "lost https://u:" in stream.getvalue()


def test_text_format_has_no_colour_without_a_terminal() -> None:
    logs.configure("info", "text", stream := io.StringIO())
    with structlog.contextvars.bound_contextvars(route="orders_search"):
        structlog.get_logger("a").info("batch delivered", written=5)
    text = stream.getvalue()
    assert "batch delivered" in text
    assert "route=orders_search" in text
    assert "\x1b[" not in text


def test_text_format_escapes_control_characters_of_values() -> None:
    logs.configure("info", "text", stream := io.StringIO())
    structlog.get_logger("a").error("key \x1b[2J of\ntwo lines", key="\x1b[1;1H", what="a\x9bb c")
    text = stream.getvalue()
    assert r"key \x1b[2J of" in text
    assert r"key=\x1b[1;1H" in text
    assert not {"\x1b", "\x9b"} & set(text)
    assert len(text.splitlines()) == 2, "a message may have several lines"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_text_and_a_pipe_gets_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    logs.configure("info", None, terminal := Terminal())
    structlog.get_logger("a").info("hello")
    assert "\x1b[" in terminal.getvalue()
    logs.configure("info", None, pipe := io.StringIO())
    structlog.get_logger("a").info("hello")
    assert lines(pipe)[0]["message"] == "hello"


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    logs.configure("info", None, terminal := Terminal())
    structlog.get_logger("a").info("hello")
    assert "\x1b[" not in terminal.getvalue()
    assert "hello" in terminal.getvalue()


def test_values_unknown_to_json_are_logged_as_text() -> None:
    logs.configure("info", "json", stream := io.StringIO())
    structlog.get_logger("a").info("odd", value={1, 2}.__class__, broken="\udcff")
    (line,) = lines(stream)
    assert line["value"] == "<class 'set'>"
    assert line["broken"] == "\\udcff"
