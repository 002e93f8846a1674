"""Tests of the configuration in force, and of its reload on a standby by a signal."""

from __future__ import annotations

import os
import signal
import time

import pytest
from structlog.testing import capture_logs

from cdf_replicator import settings
from cdf_replicator.monitoring.status_store import StatusStore
from cdf_replicator.runtime.reload import Configuration, Reload, Selection
from cdf_replicator.runtime.supervisor import Supervisor
from cdf_replicator.state.storage_path import LocalPath
from connectors.redis import RedisSink


def started(*tables):
    board = StatusStore()
    return Configuration(settings.load(), Selection(frozenset(tables)), board), board


def counted(board):
    reloads = board.snapshot().service.reloads
    return reloads.succeeded, reloads.failed, reloads.successful


def events(board):
    return [(event.route, event.what) for event in board.snapshot().events]


def test_next_configuration_is_in_force_once_adopted(content):
    configuration, board = started()
    content(tables=["orders"], trigger_seconds=5, log={"level": "debug"})
    found = configuration.read()
    assert isinstance(found, Reload)
    assert (set(configuration.routes), counted(board)) == ({"orders_cache", "stock_cache"}, (0, 0, True))
    with capture_logs() as logged:
        configuration.adopt(found)
    assert set(configuration.routes) == {"orders_cache"}
    assert (configuration.settings.trigger_seconds, configuration.settings.log.level) == (5, "info")
    assert counted(board) == (1, 0, True)
    assert events(board) == [
        ("stock_cache", "reload: stop"),
        ("orders_cache", "reload: restart, trigger_seconds: 1 -> 5.0"),
    ]
    shown = {each.path: each.value for each in board.snapshot().configuration}
    assert (shown["trigger_seconds"], shown["log.level"]) == ("5.0", "info")
    assert [(entry["event"], entry.get("route"), entry.get("deferred")) for entry in logged] == [
        ("route reloaded", "orders_cache", None),
        ("route reloaded", "stock_cache", None),
        ("configuration reloaded", None, ["log.level"]),
    ]


def test_wrong_configuration_is_refused_with_every_problem(content, tmp_path):
    configuration, board = started()
    content(trigger_seconds=-1, shutdown_seconds="soon")
    refused = configuration.read()
    assert (refused.state, refused.exit_code) == ("failed", 78)
    assert "CDF_TRIGGER_SECONDS" in refused.message
    assert "CDF_SHUTDOWN_SECONDS" in refused.message
    assert counted(board) == (0, 1, False)
    (tmp_path / "cdf.yaml").unlink()
    assert "CDF_CONFIG_FILE" in configuration.read().message
    assert (configuration.settings.trigger_seconds, counted(board)) == (1, (0, 2, False))


def test_dry_run_of_a_wrong_configuration_is_not_counted(content):
    configuration, board = started()
    content(trigger_seconds=-1)
    assert configuration.read(dry_run=True).exit_code == 78
    assert (counted(board), events(board)) == ((0, 0, True), [])


def test_unexpected_error_of_a_sink_type_is_an_answer(content, monkeypatch):
    def broken():
        raise ImportError("libpq.so.5 is gone")

    configuration, board = started()
    monkeypatch.setattr(settings, "load", broken)
    refused = configuration.read()
    assert (refused.message, refused.exit_code) == ("ImportError: libpq.so.5 is gone", 1)
    assert counted(board) == (0, 1, False)


def sinks(*names):
    return {name: {"type": "redis", "url": f"redis://{name}:1/0"} for name in names}


def test_sinks_that_can_not_be_named_are_problems_of_the_reload(content, monkeypatch):
    """A third party's sink may raise any error."""
    address = RedisSink.endpoint.fget

    def endpoint(sink):
        if "cache" in address(sink):
            return address(sink)
        raise RuntimeError("no address of redis://me:secret@host:6379")

    configuration, board = started()
    before = configuration.settings, configuration.names
    content(trigger_seconds=5, sinks=sinks("cache", "other", "spare"))
    monkeypatch.setattr(RedisSink, "endpoint", property(endpoint))
    refused = configuration.read()
    assert (refused.state, refused.exit_code, counted(board)) == ("failed", 78, (0, 1, False))
    assert refused.message.startswith("configuration: 2 problems")
    for variable in ("CDF_SINKS__OTHER", "CDF_SINKS__SPARE"):
        assert f"{variable}  (YAML" in refused.message
    assert "a sink that names its address; it raised RuntimeError: no address" in refused.message
    assert "secret" not in refused.message
    assert (configuration.settings, configuration.names) == before
    with pytest.raises(settings.ConfigurationError, match="2 problems"):
        Configuration(settings.load(), Selection(), board)


def test_target_that_can_not_be_named_is_a_problem_of_its_route(content, monkeypatch):
    def target(*_):
        raise KeyError("no such region")

    configuration, board = started()
    content(trigger_seconds=5)
    monkeypatch.setattr(RedisSink, "target", target)
    refused = configuration.read()
    assert (refused.exit_code, counted(board)) == (78, (0, 1, False))
    for variable in ("CDF_ROUTES__ORDERS_CACHE", "CDF_ROUTES__STOCK_CACHE"):
        assert f"{variable}  (YAML" in refused.message
    assert "KeyError: 'no such region'" in refused.message


def test_tables_of_the_command_line_must_keep_a_route(content):
    configuration, _ = started("stock")
    assert set(configuration.routes) == {"stock_cache"}
    content(tables=["orders"])
    refused = configuration.read()
    assert refused.exit_code == 78
    assert "--table" in refused.message
    assert "stock" in refused.message


def test_signal_reloads_a_standby_which_takes_over_with_the_result(content):
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    supervisor = Supervisor(settings.load(), Selection(), once=False, standby=True)
    supervisor._take_signals()
    try:
        content(tables=["orders"])
        os.kill(os.getpid(), signal.SIGHUP)
        assert supervisor._wait_or_stop(0.0) is False
        assert set(supervisor._configuration.routes) == {"orders_cache"}
        content(trigger_seconds=-1)
        os.kill(os.getpid(), signal.SIGHUP)
        assert supervisor._wait_or_stop(0.0) is False
        assert set(supervisor._configuration.routes) == {"orders_cache"}
        assert counted(supervisor.board) == (1, 1, False)
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        assert supervisor._wait_or_stop(0.0) is True
        first = supervisor._signalled_at
        os.kill(os.getpid(), signal.SIGTERM)
        assert 0 < time.monotonic() - first < 30
        assert supervisor._signalled_at == first, "the limit of the drain counts from the first signal"
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_standby_takes_over_with_the_configuration_that_the_holder_reloaded(content, tmp_path):
    supervisor = Supervisor(settings.load(), Selection(), once=False, standby=True)
    root = LocalPath(tmp_path)
    supervisor._taken_over(root, None).release()
    assert counted(supervisor.board) == (0, 0, True), "nothing differs"
    content(tables=["orders"])
    supervisor._taken_over(root, None).release()
    assert set(supervisor._configuration.routes) == {"orders_cache"}
    content(trigger_seconds=-1)
    supervisor._taken_over(root, None).release()
    assert set(supervisor._configuration.routes) == {"orders_cache"}
    assert counted(supervisor.board) == (1, 1, False)
    content(tables=["orders"])
    supervisor._taken_over(root, None).release()
    assert counted(supervisor.board) == (2, 1, True), "the file is right again, and nothing differs"


def test_standby_takes_over_with_changed_settings_of_spark(content, tmp_path):
    supervisor = Supervisor(settings.load(), Selection(), once=False, standby=True)
    content(spark={"conf": {"spark.task.cpus": "2"}}, log={"level": "debug"})
    supervisor._taken_over(LocalPath(tmp_path), None).release()
    assert supervisor._settings.spark.conf == {"spark.task.cpus": "2"}
    assert supervisor._settings.log.level == "info"
    assert counted(supervisor.board) == (1, 0, True)
    supervisor._spark = object()
    content(spark={"conf": {"spark.task.cpus": "3"}})
    supervisor._taken_over(LocalPath(tmp_path), None).release()
    assert supervisor._settings.spark.conf == {"spark.task.cpus": "2"}, "its Spark runs with them"
