import orjson
import pyarrow as pa
import pytest

from connectors import PermanentError, Rejected, RetryableError, WriteResult
from connectors.elasticsearch.bulk import BulkRequests, all_applied, merge, refused_alike, result_of
from connectors.elasticsearch.client import Reply
from connectors.elasticsearch.dialect import ELASTICSEARCH
from connectors.elasticsearch.sink import body_of


def index(status, kind=None, reason=""):
    return {"index": {"status": status, **({"error": {"type": kind, "reason": reason}} if kind else {})}}


def delete(status, kind=None, reason=""):
    return {"delete": index(status, kind, reason)["index"]}


CONFLICT = delete(409, "version_conflict_engine_exception", "[a]: version conflict, current version [5] is higher")
BUSY = index(429, "es_rejected_execution_exception", "rejected execution of coordinating operation")
AWAY = index(503, "unavailable_shards_exception", "[orders][0] primary shard is not active")
FULL = index(429, "cluster_block_exception", "blocked by: [TOO_MANY_REQUESTS/12/disk usage exceeded]")
BLOCKED = index(403, "cluster_block_exception", "blocked by: [FORBIDDEN/8/index write (api)];")
RECOVERING = index(503, "cluster_block_exception", "blocked by: [SERVICE_UNAVAILABLE/1/state not recovered]")
CLOSED = index(400, "index_closed_exception", "closed")
GONE = index(404, "index_not_found_exception", "no such index [orders] and [require_alias] request flag is [true]")
UNKNOWN = delete(400, "invalid_index_name_exception", "Invalid index name [CDF-writer-orders-1], must be lowercase")
HALTED = index(400, "illegal_argument_exception", "no write index is defined for alias [orders].")
KNN_CAUSE = "Parsing the created knn vector fields prior to indexing has failed as the circuit breaker triggered. Check"
KNN = index(400, "mapper_parsing_exception", "failed to parse field [v] of type [knn_vector]")
KNN["index"]["error"]["caused_by"] = {"type": "illegal_state_exception", "reason": KNN_CAUSE}
NESTED = index(400, "document_parsing_exception", "[1:6] failed to parse")
NESTED["index"]["error"]["caused_by"] = {
    "type": "x",
    "reason": None,
    "caused_by": {"type": "circuit_breaking_exception"},
}
DENIED = index(403, "security_exception", "action [indices:data/write/bulk] is unauthorized for user [u]")


def classify(*items):
    return result_of(items, changes=len(items), route="r")


def answer(*items, errors=False):
    return orjson.dumps({"errors": errors, "items": items})


@pytest.mark.parametrize(
    ("items", "errors", "expected"),
    [
        ((index(201), index(200), delete(200)), False, True),
        ((index(201), delete(404), index(200)), False, False),
        ((index(201), index(200)), False, False),
        ((index(201), index(200), BUSY), True, False),
        ((index(201), index(200), index(400, "invalid", '"errors":false,"status":200')), True, False),
    ],
)
def test_response_without_errors_is_not_read_item_by_item(items, errors, expected):
    assert all_applied(answer(*items, errors=errors), 3) is expected


def test_every_item_is_classified():
    bad = index(400, "document_parsing_exception", "[1:6] failed to parse field [n]")
    result = classify(index(201), index(200), delete(200), delete(404), CONFLICT, bad, BUSY)
    assert result == WriteResult(
        noop=[3],
        stale=[4],
        rejected=[Rejected(5, "document_parsing", "document_parsing_exception: [1:6] failed to parse field [n]")],
        retry=[6],
    )


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("document_parsing_exception", "document_parsing"),
        ("mapper_parsing_exception", "document_parsing"),
        ("strict_dynamic_mapping_exception", "strict_dynamic_mapping"),
        ("illegal_argument_exception", "illegal_argument"),
        ("version_type_exception", "invalid"),
    ],
)
def test_codes_are_a_small_fixed_set(kind, code):
    assert [row.code for row in classify(index(201), index(400, kind)).rejected] == [code]


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (BUSY, "overloaded"),
        (AWAY, "unavailable"),
        (RECOVERING, "unavailable"),
        (FULL, "read_only"),
        (BLOCKED, "read_only"),
        (CLOSED, "read_only"),
        (KNN, "overloaded"),
        (NESTED, "overloaded"),
        (index(500, "engine_closed_exception"), "unavailable"),
        (index(404, "shard_not_found_exception"), "unavailable"),
    ],
)
def test_temporary_refusal_is_sent_again(item, reason):
    result = classify(index(201), item)
    assert (list(result.retry), result.retry_reason) == ([1], reason)
    with pytest.raises(RetryableError) as caught:
        classify(item, item)
    assert caught.value.reason == reason


def test_document_that_a_pipeline_refuses_is_rejected():
    refused = index(500, "fail_processor_exception", "no price")
    assert [row.code for row in classify(index(201), refused).rejected] == ["invalid"]
    assert refused_alike([refused, refused]) == {("fail_processor_exception", "no price")}


def test_document_that_only_mentions_a_circuit_breaker_is_rejected():
    bad = index(400, "document_parsing_exception", KNN_CAUSE)
    bad["index"]["error"]["caused_by"] = {"type": "illegal_argument_exception", "reason": KNN_CAUSE}
    assert [row.code for row in classify(index(201), bad).rejected] == ["document_parsing"]


def test_retry_has_the_worst_reason():
    assert classify(index(201), BUSY, FULL, AWAY).retry_reason == "read_only"
    assert classify(index(201), BUSY, AWAY).retry_reason == "unavailable"


PIPELINE = index(400, "illegal_argument_exception", "pipeline with id [enrich] does not exist")
ROUTING = delete(400, "routing_missing_exception", "routing is required for [orders]/[a]")
FIELDS = index(
    400, "document_parsing_exception", "[1:9] failed to parse: Limit of total fields [1000] has been exceeded"
)

SHARD = index(400, "illegal_argument_exception", "Number of documents in the index can't exceed [2147483519]")


@pytest.mark.parametrize("item", [GONE, UNKNOWN, HALTED, DENIED, PIPELINE, ROUTING, FIELDS, SHARD])
def test_refusal_that_needs_an_operator_halts(item):
    with pytest.raises(PermanentError):
        classify(index(201), item)


def test_index_is_suspected_only_if_all_upserts_are_refused_alike():
    bad, worse = index(400, "document_parsing_exception", "[1:6] n"), index(400, "illegal_argument_exception", "x")
    other = index(400, "document_parsing_exception", "[1:9] m")
    kind = "document_parsing_exception"
    assert refused_alike([bad, delete(404), other, bad, CONFLICT]) == {(kind, " n"), (kind, " m")}
    for items in ([bad, worse], [bad, index(201)], [bad, BUSY], [delete(200)], [CONFLICT]):
        assert refused_alike(items) == set()


def sent(*items, probe):
    """Send rows that an index refuses by these items, and an empty document by ``probe``."""
    answers = [answer(*items, errors=True), answer(probe, errors=True)]

    class Cluster:
        def send(self, *_):
            return Reply(ELASTICSEARCH, 200, {"x-elastic-product": "Elasticsearch"}, answers.pop(0))

    return BulkRequests(Cluster(), "orders", "r").send(b'{"index":{}}\n{}\n' * len(items), len(items))


GARBAGE = "unable to parse date [garbage]"
ABSENT = "field [created] not present as part of path [created]"
PARSED = "[{}] failed to parse field [seen] of type [date] in document with id '{}'. Preview of field's value: 'never'"


def test_row_that_a_pipeline_refuses_alone_is_rejected():
    item, probe = (index(400, "illegal_argument_exception", reason) for reason in (GARBAGE, ABSENT))
    result = sent(item, probe=probe)
    assert result.rejected == [Rejected(0, "illegal_argument", f"illegal_argument_exception: {GARBAGE}")]


@pytest.mark.parametrize(
    ("kind", "reason", "of_probe"),
    [
        ("illegal_argument_exception", ABSENT, ABSENT),
        ("document_parsing_exception", "[1:98] failed to parse", "[1:2] failed to parse"),
        ("fail_processor_exception", "no writes: 1", "no writes: cdf-replicator-probe"),
        ("document_parsing_exception", PARSED.format("1:98", "it's"), PARSED.format("1:12", "cdf-replicator-probe")),
    ],
)
def test_index_that_refuses_the_empty_document_for_the_same_reason_halts(kind, reason, of_probe):
    with pytest.raises(PermanentError, match="even an empty document"):
        sent(index(400, kind, reason), probe=index(400, kind, of_probe))


def test_index_that_refuses_several_rows_and_the_empty_document_halts():
    """The format of a processor may be wrong for every row, each of which is refused for its own value."""
    kind = "illegal_argument_exception"
    rows = [index(400, kind, f"unable to parse date [2026-01-0{day}]") for day in (1, 2)]
    with pytest.raises(PermanentError, match="even an empty document"):
        sent(*rows, probe=index(400, kind, ABSENT))


def test_response_of_another_length_is_invalid():
    with pytest.raises(RetryableError, match="2 changes sent, 1 answered"):
        result_of([index(201)], changes=2, route="r")


def test_results_of_parts_are_merged_with_their_positions():
    first = WriteResult(stale=[0], rejected=[Rejected(1, "invalid", "x")], sent_bytes=10)
    again = {"retry": [3], "retry_reason": "unavailable"}
    second = WriteResult(noop=[0], stale=[1], rejected=[Rejected(2, "invalid", "y")], sent_bytes=5, **again)
    assert merge(first, second, 4) == WriteResult(
        noop=[4],
        stale=[0, 5],
        rejected=[Rejected(1, "invalid", "x"), Rejected(6, "invalid", "y")],
        retry=[7],
        retry_reason="unavailable",
        sent_bytes=15,
    )


def test_merged_retry_of_parts_has_the_worse_reason():
    overloaded = WriteResult(retry=[0], retry_reason="overloaded")
    full = WriteResult(retry=[1], retry_reason="read_only")
    assert merge(overloaded, full, 2).retry_reason == "read_only"
    assert merge(full, overloaded, 2).retry_reason == "read_only"
    assert merge(overloaded, WriteResult(stale=[0], retry_reason="read_only"), 2).retry_reason == "overloaded"
    assert merge(WriteResult(), WriteResult(), 2).retry_reason == WriteResult().retry_reason


def test_sent_bytes_are_counted_and_missing_response_is_unavailable():
    assert result_of([index(201)], changes=1, route="r", sent_bytes=7).sent_bytes == 7
    with pytest.raises(RetryableError) as caught:
        result_of([], changes=1, route="r")
    assert caught.value.reason == "unavailable"


@pytest.mark.parametrize("item", [BUSY, AWAY, FULL])
def test_message_of_the_cluster_is_kept(item):
    with pytest.raises(RetryableError) as caught:
        classify(item)
    assert item["index"]["error"]["reason"] in caught.value.detail


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_the_body_of_a_slice_is_its_rows_only(kind):
    column = pa.array(["ä\n", "bb\n", "ccc\n", "d\n"], kind)
    assert body_of(column) == "ä\nbb\nccc\nd\n".encode()
    assert body_of(column.slice(1, 2)) == b"bb\nccc\n"
    assert body_of(column.slice(1, 3).slice(2)) == b"d\n"
    assert body_of(column.slice(4)) == b""
