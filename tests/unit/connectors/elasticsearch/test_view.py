"""A point in time needs an answer of every shard."""

import json

import pytest

from connectors import RetryableError
from connectors.elasticsearch import view
from connectors.elasticsearch.client import Cluster, Reply
from connectors.elasticsearch.settings import ElasticsearchSettings


def test_refresh_that_fails_on_a_shard_is_retried(monkeypatch):
    cluster = Cluster(ElasticsearchSettings(type="elasticsearch", hosts=["http://127.0.0.1:9200"]))
    body = {"_shards": {"total": 4, "successful": 3, "failed": 1}, "id": "x"}
    answer = Reply(cluster.dialect, 200, {"x-elastic-product": "Elasticsearch"}, json.dumps(body).encode())
    monkeypatch.setattr(cluster, "send", lambda *_, **__: answer)
    with pytest.raises(RetryableError, match="POST /orders/_refresh: it failed on 1 shards"):
        view.open_pit(cluster, "orders")
