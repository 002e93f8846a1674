"""A cluster that says no: down, hanging, closed to us, or small."""

import json
import socket
from contextlib import closing

import pytest

from cdf_replicator.delivery import RetryPolicy
from cdf_replicator.delivery.back_pressure import BackPressure
from cdf_replicator.delivery.worker import write_partition
from connectors import PermanentError, RetryableError
from connectors.testing import SCHEMA, render_chunk, upsert
from deploy.local.servers import Elasticsearch
from tests.contract.elasticsearch_reader import Reader, route_to, sink_to

PASSWORD = "correct horse"
# The test distribution lacks what the index of users needs, so they live in files.
USERS = {
    "nobody": [],  # a role that does not exist
    "reader": ["read", "view_index_metadata"],
    "granted": ["view_index_metadata", "create_index", "manage", "read", "write"],
}


@pytest.fixture(scope="module")
def secured():
    roles = {name: {"indices": [{"names": ["*"], "privileges": rights}]} for name, rights in USERS.items() if rights}
    files = {
        "roles.yml": [f"{name}: {json.dumps(role)}\n" for name, role in roles.items()],
        "users": [f"{name}:{PASSWORD}\n" for name in USERS],
        "users_roles": [f"{name}:{name}\n" for name in USERS],
    }
    with Elasticsearch.start(
        settings={"http.max_content_length": "1mb", "indexing_pressure.memory.limit": "1200kb"},
        password=PASSWORD,
        files={name: "".join(lines).encode() for name, lines in files.items()},
    ) as server:
        yield server


@pytest.fixture
def es(secured):
    return Reader(secured.url, ("elastic", PASSWORD))


@pytest.fixture
def sink(secured):
    with closing(sink_to(secured.url, username="elastic", password=PASSWORD, request_timeout=20)) as sink:
        yield sink


def sink_of(secured, user):
    return closing(sink_to(secured.url, username=user, password=PASSWORD))


def test_good_credentials_pass_the_check(sink):
    sink.check()


@pytest.mark.parametrize("identity", [{}, {"username": "elastic", "password": "wrong"}])
def test_wrong_credentials_name_the_settings_to_change(secured, identity):
    with closing(sink_to(secured.url, **identity)) as sink, pytest.raises(PermanentError) as caught:
        sink.check()
    assert "401" in caught.value.reason
    assert "API_KEY" in caught.value.hint


def test_api_key_that_the_server_can_not_read_is_retried(secured):
    """The test distribution can't read the index of API keys, as a server can't during its recovery."""
    with (
        closing(sink_to(secured.url, api_key="bm86cGU=")) as sink,
        pytest.raises(RetryableError, match=r"HTTP 401 .*: it can't read the API key") as caught,
    ):
        sink.check()
    assert caught.value.reason == "unavailable"


def test_the_check_needs_no_privilege(secured):
    with sink_of(secured, "nobody") as sink:
        sink.check()


def test_missing_privilege_to_create_the_index_is_named(secured):
    with sink_of(secured, "reader") as sink, pytest.raises(PermanentError) as caught:
        sink.prepare(SCHEMA, route_to())
    assert "403" in caught.value.reason
    assert "create_index" in caught.value.hint


def test_missing_privilege_to_write_is_named(secured, sink, spark):
    route = route_to()
    sink.prepare(SCHEMA, route)
    with sink_of(secured, "reader") as reader:
        reader.open(route)
        with pytest.raises(PermanentError, match="not allowed"):
            reader.write(render_chunk(spark, reader, route, SCHEMA, [upsert("a", 1)]))


def test_privileges_of_the_hint_are_sufficient(secured, spark):
    route = route_to()
    with sink_of(secured, "granted") as sink:
        sink.prepare(SCHEMA, route)
        sink.open(route)
        sink.write(render_chunk(spark, sink, route, SCHEMA, [upsert("a", 1)]))
        sink.prepare(SCHEMA, route)
        assert sink.delete_orphans(route, 2**45) == 1


def test_too_large_request_is_halved_and_too_large_row_is_rejected(es, sink, spark):
    route = route_to()
    sink.prepare(SCHEMA, route)
    sink.open(route)
    changes = [upsert(f"k{number}", 1, "x" * 80_000) for number in range(6)]
    changes[4] = upsert("huge", 1, "y" * 1_200_000)
    result = sink.write(render_chunk(spark, sink, route, SCHEMA, changes))
    assert [(row.position, row.code) for row in result.rejected] == [(4, "too_large")]
    assert es.search(route.table, {"match_all": {}}) == ["k0", "k1", "k2", "k3", "k5"]


def test_sweep_of_more_than_a_request_holds_is_halved(es, sink, spark):
    """The last page of 4200 documents has more bytes of deletes than this server takes (1 MB), and half of them fit."""
    route = route_to()
    sink.prepare(SCHEMA, route)
    sink.open(route)
    orphans = [upsert(f"{number:0300d}", 1) for number in range(4200)]
    for start in range(0, len(orphans), 500):
        sink.write(render_chunk(spark, sink, route, SCHEMA, orphans[start : start + 500]))
    sink.write(render_chunk(spark, sink, route, SCHEMA, [upsert("kept", 2**45)]))
    assert sink.delete_orphans(route, 2**45) == 4200
    assert es.search(route.table, {"match_all": {}}) == ["kept"]


def test_cluster_short_of_memory_gets_smaller_requests(es, sink, spark):
    """A request is smaller than HTTP permits, and larger than the memory for indexing, which counts a long id twice."""
    route = route_to()
    sink.prepare(SCHEMA, route)
    changes = [upsert(f"{number:0500d}", 1) for number in range(850)]
    pressure = BackPressure(sink.settings)
    chunk = render_chunk(spark, sink, route, SCHEMA, changes)
    outcome = write_partition(sink, pressure, route, RetryPolicy(budget_seconds=10), iter([chunk]))
    assert (outcome.failure, outcome.applied) == (None, {"update_postimage": 850})
    assert outcome.retries["overloaded"] >= 1
    assert pressure.share < 1
    es("POST", f"/{route.table}/_refresh")
    assert es("GET", f"/{route.table}/_count")["count"] == 850


def test_stopped_cluster_is_unreachable_until_it_restarts(secured, sink, spark, es):
    route = route_to()
    sink.prepare(SCHEMA, route)
    sink.open(route)
    chunk = render_chunk(spark, sink, route, SCHEMA, [upsert("a", 1, "one")])
    secured.stop()
    for call in (
        sink.check,
        lambda: sink.write(chunk),
        lambda: sink.prepare(SCHEMA, route),
        lambda: sink.read_claim(route),
    ):
        with pytest.raises(RetryableError) as caught:
            call()
        assert caught.value.reason == "unreachable"
    secured.restart()
    assert not sink.write(chunk).rejected
    assert es.document(route.table, "a") == {"id": "a", "name": "one"}


def test_a_cluster_that_hangs_times_out(secured, sink):
    route = route_to()
    with closing(sink_to(secured.url, username="elastic", password=PASSWORD, request_timeout=5)) as impatient:
        secured.pause()
        try:
            with pytest.raises(RetryableError) as caught:
                impatient.check()
        finally:
            secured.resume()
        assert caught.value.reason == "timeout"
        sink.check()  # the cluster may need longer for its first answer
        assert impatient.read_claim(route) is None


def test_a_request_without_an_answer_is_sent_once():
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        closing(sink_to(f"http://127.0.0.1:{listening.getsockname()[1]}", request_timeout=0.5)) as sink,
    ):
        with pytest.raises(RetryableError) as caught:
            sink.check()
        assert caught.value.reason == "timeout"
        listening.setblocking(False)
        listening.accept()[0].close()
        with pytest.raises(BlockingIOError):
            listening.accept()


def test_other_server_is_not_accepted_as_elasticsearch(redis_server):
    url = f"http://127.0.0.1:{redis_server.port}"
    with closing(sink_to(url, request_timeout=5)) as sink, pytest.raises(RetryableError):
        sink.check()
