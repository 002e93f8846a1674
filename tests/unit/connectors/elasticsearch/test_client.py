"""The client of several hosts sends a request once if a host answers, whatever the answer is."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from connectors.elasticsearch.client import Cluster
from connectors.elasticsearch.settings import ElasticsearchSettings


class Refusing(BaseHTTPRequestHandler):
    """A host that answers each request with a status and counts them; a probe (HEAD) is not counted."""

    status: int
    requests: list[str]

    def do_HEAD(self):
        self._answer(200)

    def do_GET(self):
        self.requests.append(self.path)
        self._answer(self.status)

    def _answer(self, status):
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        """Print nothing."""


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_refused_request_is_not_repeated_on_other_hosts(status):
    handler = type("Handler", (Refusing,), {"status": status, "requests": []})
    with ExitStack() as stack:
        servers = [stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), handler)) for _ in range(3)]
        for server in servers:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
        hosts = [f"http://127.0.0.1:{server.server_port}" for server in servers]
        cluster = Cluster(ElasticsearchSettings(type="elasticsearch", hosts=hosts))
        assert cluster.send("GET", "/orders").status == status
        assert handler.requests == ["/orders"]
