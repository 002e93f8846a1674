"""Elasticsearch and OpenSearch as their users see them, below and beside the sink under test."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any
from uuid import uuid4

import httpx

from connectors import RouteSpec
from connectors.elasticsearch import ElasticsearchSink, OpenSearchSink


class Reader:
    def __init__(self, url: str, auth: tuple[str, str] | None = None) -> None:
        self._url, self._auth = url, auth

    def __call__(self, method: str, path: str, body: Any = None) -> Any:
        reply = self._send(method, path, body)
        assert reply.is_success, reply.text
        return reply.json()

    def missing(self, path: str) -> bool:
        return self._send("GET", path).status_code == httpx.codes.NOT_FOUND

    def document(self, index: str, identity: str) -> dict[str, Any] | None:
        """Return ``_source`` with its numbers as text. Every completed write is visible."""
        reply = self._send("POST", f"/{index}/_mget", {"ids": [identity]})
        (found,) = json.loads(reply.text, parse_float=str)["docs"]
        return found["_source"] if found.get("found") else None

    def search(self, index: str, query: dict[str, Any]) -> list[str]:
        self("POST", f"/{index}/_refresh")
        return sorted(hit["_id"] for hit in self("POST", f"/{index}/_search", {"query": query})["hits"]["hits"])

    def mapping(self, index: str) -> dict[str, Any]:
        return self("GET", f"/{index}/_mapping")[index]["mappings"]

    def _send(self, method: str, path: str, body: Any = None) -> httpx.Response:
        return httpx.request(method, self._url + path, json=body, auth=self._auth, timeout=60)


def id_of(key: str) -> str:
    """The document of a key, as the README says."""
    if len(key.encode()) > 512:
        return sha256(key.encode()).hexdigest()
    return key or "%"


def route_to(index: str | None = None, **more: Any) -> RouteSpec:
    """Return a route to the named index, or to an unused index."""
    options = ElasticsearchSink.Options(index=index)
    known = {"name": "orders_search", "table": f"orders_{uuid4().hex}", "keys": ("id",), "owner": "us", "epoch": 1}
    return RouteSpec(**{**known, "options": options, **more})


def sink_to(url: str, **more: Any) -> ElasticsearchSink:
    return ElasticsearchSink(ElasticsearchSink.Settings(type="elasticsearch", hosts=url, **more))


def opensearch_to(url: str, **more: Any) -> OpenSearchSink:
    return OpenSearchSink(OpenSearchSink.Settings(type="opensearch", hosts=url, **more))
