"""Answers ``GET /`` for an Elasticsearch that can't, and passes other reads on.

The test distribution has no answer to ``GET /``, which es-hadoop sends at the start of every job and task. It then
finds the node by ``_nodes/http`` and writes to it directly: no bulk request comes through here, and none could, since
only reads are taken.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def relay(url: str) -> Iterator[str]:
    """The address, as ``host:port``, that answers for the server at ``url``."""
    with httpx.Client(base_url=url, timeout=60) as client:
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(client, _greeting(client)))
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def _greeting(client: httpx.Client) -> bytes:
    (node,) = client.get("/_nodes/http").raise_for_status().json()["nodes"].values()
    state = client.get("/_cluster/state/version").raise_for_status().json()
    version = {"number": node["version"], "build_flavor": "default"}
    names = {"name": node["name"], "cluster_name": state["cluster_name"], "cluster_uuid": state["cluster_uuid"]}
    return json.dumps({**names, "version": version, "tagline": "You Know, for Search"}).encode()


def _handler(client: httpx.Client, greeting: bytes) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path == "/":
                self._answer(200, greeting)
            else:
                answer = client.request(self.command, self.path)
                self._answer(answer.status_code, answer.content)

        do_HEAD = do_GET  # noqa: N815

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("X-Elastic-Product", "Elasticsearch")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
