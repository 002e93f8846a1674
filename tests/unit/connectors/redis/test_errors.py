"""Which words of Redis mean wait, and which mean stop."""

import pytest
from redis import exceptions

from connectors import PermanentError, RetryableError
from connectors.redis.errors import classified

IN_SCRIPT = "ERR Error running script (call to f_8a): @user_script:12: @user_script: 12: -{} try later"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), "out_of_memory"),
        (exceptions.ResponseError(IN_SCRIPT.format("OOM")), "out_of_memory"),
        (exceptions.ReadOnlyError("You can't write against a read only replica."), "read_only"),
        (exceptions.ResponseError(IN_SCRIPT.format("READONLY")), "read_only"),
        (exceptions.BusyLoadingError("Redis is loading the dataset in memory"), "unavailable"),
        (exceptions.ResponseError("BUSY Redis is busy running a script."), "unavailable"),
        (exceptions.ResponseError("NOREPLICAS Not enough good replicas to write."), "unavailable"),
        (exceptions.ResponseError("MISCONF Redis is configured to save RDB snapshots"), "unavailable"),
        (exceptions.MasterDownError("Link with MASTER is down"), "unavailable"),
        (exceptions.TimeoutError("Timeout reading from socket"), "timeout"),
        (exceptions.ConnectionError("Error 111 connecting to cache:6379. Connection refused."), "unreachable"),
        (exceptions.ConnectionError("max number of clients reached"), "overloaded"),
    ],
)
def test_temporary_errors_are_retryable(error, reason):
    with pytest.raises(RetryableError) as caught, classified("cache:6379/0"):
        raise error
    assert caught.value.reason == reason
    assert "cache:6379/0" in caught.value.detail


def test_response_of_another_protocol_is_retryable_with_a_hint():
    with pytest.raises(RetryableError) as caught, classified("cache:6379/0"):
        raise exceptions.InvalidResponse('Protocol error, got "H" as reply type byte')
    assert caught.value.reason == "unavailable"
    assert caught.value.detail.startswith('cache:6379/0: Protocol error, got "H" as reply type byte: ')
    assert caught.value.detail.endswith("the answer is not in Redis' protocol; if this error persists, correct the url")


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (exceptions.AuthenticationError("invalid username-password pair"), "refuses this user"),
        (exceptions.NoPermissionError("No permissions to access a key"), "refuses this user"),
        (exceptions.ResponseError("The user executing the script can't run this command"), "refuses this user"),
        (
            exceptions.ResponseError("ACL failure in script: User u has no permissions to run 'mset'"),
            "refuses this user",
        ),
        (exceptions.ResponseError("DB index is out of range"), "DB index"),
        (exceptions.MovedError("3999 127.0.0.1:6381"), "cluster"),
    ],
)
def test_permanent_errors_stop_the_route(error, word):
    with pytest.raises(PermanentError, match=word) as caught, classified("cache:6379/0"):
        raise error
    assert caught.value.hint


def test_unknown_error_is_a_bug_and_unchanged():
    with pytest.raises(exceptions.ResponseError, match="syntax"), classified("cache:6379/0"):
        raise exceptions.ResponseError("ERR syntax error")


@pytest.mark.parametrize("text", ["3999 127.0.0.1:6381", "12707 10.0.0.1:6379"])
def test_slot_that_moves_is_temporary_in_a_cluster(text):
    for kind in (exceptions.MovedError, exceptions.AskError):
        with pytest.raises(RetryableError, match="slots moved") as caught, classified("a:1", cluster=True):
            raise kind(text)
        assert caught.value.reason == "unavailable"


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (exceptions.ConnectionError("refused"), RetryableError),
        (exceptions.AuthenticationError("invalid username-password pair"), PermanentError),
        (exceptions.ResponseError("This instance has cluster support disabled"), PermanentError),
        (None, RetryableError),
    ],
)
def test_cluster_without_readable_nodes_names_the_cause(cause, kind):
    with pytest.raises(kind, match="a:1"), classified("a:1", cluster=True):
        raise exceptions.RedisClusterException("no node") from cause


@pytest.mark.parametrize(
    "error", [exceptions.ClusterDownError("Hash slot not served"), exceptions.TryAgainError("wait")]
)
def test_cluster_without_a_master_for_a_slot_is_retryable(error):
    with pytest.raises(RetryableError) as caught, classified("a:1", cluster=True):
        raise error
    assert caught.value.reason == "unavailable"
