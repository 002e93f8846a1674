"""The meaning of responses; recorded from Elasticsearch 9.2.4 and from proxies in front of it."""

import json

import pytest

from connectors import PermanentError, RetryableError
from connectors.elasticsearch.client import Cluster, Reply, refusal
from connectors.elasticsearch.dialect import ELASTICSEARCH, OPENSEARCH
from connectors.elasticsearch.settings import ElasticsearchSettings, OpenSearchSettings

SETTINGS = {"elasticsearch": ElasticsearchSettings, "opensearch": OpenSearchSettings}

PRODUCT = {"x-elastic-product": "Elasticsearch"}
UNABLE = "unable to authenticate with provided credentials and anonymous access is not allowed for this request"


def failed(what):
    return {"additional_unsuccessful_credentials": f"API key: apikey authentication for id VuaCfGcB {what}"}


def reply(status, kind=None, reason="", headers=None, **more):
    body = json.dumps({"error": {"type": kind, "reason": reason, **more}, "status": status}) if kind else reason
    return Reply(ELASTICSEARCH, status, PRODUCT if headers is None else headers, body.encode())


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (reply(429, "es_rejected_execution_exception", "rejected execution"), "overloaded"),
        (reply(429, "cluster_block_exception", "disk usage exceeded flood-stage watermark"), "read_only"),
        (reply(403, "cluster_block_exception", "FORBIDDEN/12/index read-only"), "read_only"),
        (reply(403, "index_create_block_exception", "FORBIDDEN/10/cluster create-index blocked (api)"), "read_only"),
        (reply(503, "cluster_block_exception", "SERVICE_UNAVAILABLE/2/no master"), "unavailable"),
        (reply(502, reason="<html>Bad Gateway</html>", headers={}), "unavailable"),
        (reply(504, reason="", headers={}), "unavailable"),
        (reply(404, reason="default backend - 404", headers={}), "unavailable"),
        (reply(404, "search_context_missing_exception", "No search context found"), "unavailable"),
        (reply(401, "security_exception", UNABLE, **failed("encountered a failure")), "unavailable"),
    ],
)
def test_temporary_status_is_retryable(answer, reason):
    error = refusal(answer, "bulk")
    assert isinstance(error, RetryableError)
    assert error.reason == reason
    assert "bulk" in error.detail


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (reply(401, "security_exception", "missing authentication credentials for REST request"), "credentials"),
        (reply(401, "security_exception", UNABLE, **failed("has been invalidated")), "credentials"),
        (reply(401, reason="<html>nginx</html>", headers={}), "credentials"),
        (reply(403, "security_exception", "action [indices:admin/create] is unauthorized"), "not allowed"),
        (reply(400, "illegal_argument_exception", "Limit of total fields [1000] has been exceeded"), "Limit of total"),
        (reply(404, "index_not_found_exception", "no such index [orders]"), "no such index"),
    ],
)
def test_status_that_needs_an_operator_is_permanent(answer, word):
    error = refusal(answer, "bulk")
    assert isinstance(error, PermanentError)
    assert word in error.reason
    assert error.hint


@pytest.mark.parametrize(
    "error", [{"type": "null_pointer_exception", "reason": None}, {"type": "null_pointer_exception"}]
)
def test_error_without_a_reason_is_temporary_and_named_by_its_type(error):
    answer = Reply(ELASTICSEARCH, 500, PRODUCT, json.dumps({"error": error, "status": 500}).encode())
    found = refusal(answer, "bulk")
    assert isinstance(found, RetryableError)
    assert (found.reason, found.detail) == ("unavailable", "bulk: HTTP 500 null_pointer_exception")


def test_retry_after_of_the_server_is_kept():
    assert refusal(reply(503, reason="", headers={"retry-after": "7"}), "bulk").retry_after == 7.0
    assert (
        refusal(reply(429, reason="", headers={"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}), "x").retry_after
        is None
    )


@pytest.mark.parametrize(
    "answer",
    [
        reply(200, reason="<html>maintenance</html>", headers={}),
        reply(200, reason="{}", headers={}),
        reply(200, reason="x"),
    ],
)
def test_success_status_of_another_server_is_refused(answer):
    with pytest.raises(RetryableError, match="does not come from Elasticsearch"):
        answer.json()


@pytest.mark.parametrize(
    ("dialect", "headers", "genuine"),
    [
        (ELASTICSEARCH, {"x-elastic-product": "Elasticsearch"}, True),
        (OPENSEARCH, {"x-opensearch-version": "OpenSearch/3.8.0 (opensearch)"}, True),
        (ELASTICSEARCH, {"x-opensearch-version": "OpenSearch/3.8.0 (opensearch)"}, False),
        (OPENSEARCH, {"x-elastic-product": "Elasticsearch"}, False),
        (OPENSEARCH, {}, False),
    ],
)
def test_product_is_recognised_by_its_header(dialect, headers, genuine):
    assert Reply(dialect, 200, headers).genuine is genuine


def test_refused_credentials_name_the_product():
    error = refusal(Reply(OPENSEARCH, 401, {}, b"Unauthorized"), "GET /_plugins/_security/authinfo")
    assert error.reason == (
        "OpenSearch refused the credentials (GET /_plugins/_security/authinfo: HTTP 401 Unauthorized)."
    )


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, '<html>maintenance <input name="username"></html>'),
        (302, ""),
        (404, "default backend - 404"),
        (404, '{"message": "no Route matched with those values"}'),
        (404, '{"timestamp": "2026-11-28", "status": 404, "error": "Not Found", "path": "/_security/_authenticate"}'),
    ],
)
@pytest.mark.parametrize("sink", ["elasticsearch", "opensearch"])
def test_answer_of_a_proxy_at_the_start_is_temporary(monkeypatch, sink, status, body):
    cluster = cluster_that_answers(monkeypatch, sink, status, {}, body)
    with pytest.raises(RetryableError, match=rf"HTTP {status}.* does not come from .* set HOSTS") as caught:
        cluster.check()
    assert caught.value.reason == "unavailable"


@pytest.mark.parametrize(
    ("sink", "status", "body"),
    [
        ("elasticsearch", 200, '{"username":"elastic","roles":["superuser"]}'),  # 7.10
        ("opensearch", 200, '{"user":"User [name=admin]","user_name":"admin"}'),  # 2.19
        ("opensearch", 400, '{"error":"no handler found for uri [/_plugins/_security/authinfo] and method [GET]"}'),
        ("elasticsearch", 405, '{"error":{"root_cause":[{"type":"x"}],"type":"x","reason":"y"},"status":405}'),
    ],
)
def test_version_that_does_not_name_itself_is_permanent(monkeypatch, sink, status, body):
    cluster = cluster_that_answers(monkeypatch, sink, status, {}, body)
    with pytest.raises(PermanentError, match=rf"HTTP {status}.* does not come from .* or later") as caught:
        cluster.check()
    assert "HOSTS" in caught.value.hint


def test_other_product_is_permanent(monkeypatch):
    cluster = cluster_that_answers(monkeypatch, "opensearch", 404, PRODUCT, "{}")
    with pytest.raises(PermanentError, match="this is Elasticsearch, and the sink has TYPE=opensearch"):
        cluster.check()


@pytest.mark.parametrize(
    ("version", "accepted"), [("3.2.0", False), ("3.3.0", True), ("3.10.1", True), ("4.0.0", True)]
)
def test_opensearch_that_can_not_sort_a_point_in_time_is_refused(monkeypatch, version, accepted):
    headers = {"x-opensearch-version": f"OpenSearch/{version} (opensearch)"}
    cluster = cluster_that_answers(monkeypatch, "opensearch", 200, headers, "{}")
    if accepted:
        cluster.check()
        return
    with pytest.raises(
        PermanentError, match=r"this is OpenSearch/3\.2\.0 \(opensearch\), older than 3\.3\. Upgrade it\."
    ):
        cluster.check()


@pytest.mark.parametrize("setting", ["knn", "knn.derived_source.enabled"])
def test_missing_vector_plugin_is_named_whichever_setting_is_refused_first(setting):
    body = {
        "error": {"type": "illegal_argument_exception", "reason": f"unknown setting [index.{setting}] please check"}
    }
    answer = Reply(OPENSEARCH, 400, {"x-opensearch-version": "OpenSearch/3.8.0"}, json.dumps(body).encode())
    assert "opensearch-knn" in refusal(answer, "PUT /orders").hint


def test_refused_search_names_the_reason_of_a_shard():
    cause = {"type": "illegal_argument_exception", "reason": "Result window is too large, ..."}
    answer = reply(400, "search_phase_execution_exception", "all shards failed", root_cause=[cause])
    assert "Result window is too large" in refusal(answer, "POST /_search").reason


@pytest.mark.parametrize("causes", [[], None])
def test_refused_search_without_a_cause_names_its_own_reason(causes):
    answer = reply(400, "search_phase_execution_exception", "all shards failed", root_cause=causes)
    assert "all shards failed" in refusal(answer, "POST /_search").reason


def cluster_that_answers(monkeypatch, sink, status, headers, body):
    cluster = Cluster(SETTINGS[sink](type=sink, hosts=["http://127.0.0.1:9200"]))
    monkeypatch.setattr(cluster, "send", lambda *_, **__: Reply(cluster.dialect, status, headers, body.encode()))
    return cluster
