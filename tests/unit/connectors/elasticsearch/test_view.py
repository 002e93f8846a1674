"""A point in time needs an answer of every shard."""

import json

import pytest

from connectors import RetryableError
from connectors.elasticsearch import view
from connectors.elasticsearch.client import Cluster, Reply
from connectors.elasticsearch.settings import ElasticsearchSettings, OpenSearchSettings


def test_refresh_that_fails_on_a_shard_is_retried(monkeypatch):
    cluster = Cluster(ElasticsearchSettings(type="elasticsearch", hosts=["http://127.0.0.1:9200"]))
    body = {"_shards": {"total": 4, "successful": 3, "failed": 1}, "id": "x"}
    answer = Reply(cluster.dialect, 200, {"x-elastic-product": "Elasticsearch"}, json.dumps(body).encode())
    monkeypatch.setattr(cluster, "send", lambda *_, **__: answer)
    with pytest.raises(RetryableError, match="POST /orders/_refresh: it failed on 1 shards"):
        view.open_pit(cluster, "orders")


def test_point_in_time_of_opensearch_reads_primary_shards(monkeypatch):
    """With segment replication a replica lacks the newest writes, also after a refresh."""
    paths = []
    cluster = Cluster(OpenSearchSettings(type="opensearch", hosts=["http://127.0.0.1:9200"]))
    headers, body = {"x-opensearch-version": "OpenSearch/3.8.0 (opensearch)"}, b'{"pit_id": "x"}'

    def send(_, target, *__):
        paths.append(target)
        return Reply(cluster.dialect, 200, headers, body)

    monkeypatch.setattr(cluster, "send", send)
    assert view.open_pit(cluster, "orders") == "x"
    assert paths[0] == "/orders/_refresh"
    assert paths[1].startswith("/orders/_search/point_in_time?")
    assert "&preference=_primary&" in paths[1]
