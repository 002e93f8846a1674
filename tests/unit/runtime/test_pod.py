"""Tests of the role label of a pod: the request to the API server, and its retries."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from cdf_replicator.runtime import pod
from cdf_replicator.runtime.pod import Pod

GIVEN = {
    "POD_ROLE_LABEL": "cdf-replicator/role",
    "POD_NAME": "lake-0",
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "KUBERNETES_SERVICE_PORT": "6443",
}


@pytest.fixture
def account(tmp_path):
    (tmp_path / "namespace").write_text("replication")
    (tmp_path / "token").write_text("secret\n")
    return tmp_path


@pytest.fixture
def received():
    return []


@pytest.fixture
def url(received):
    """Where requests are kept; the first is answered with 403, as before a RoleBinding is there."""

    class Listener(BaseHTTPRequestHandler):
        def do_PATCH(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.path, self.headers["Authorization"], self.headers["Content-Type"], json.loads(body)))
            self.send_response(403 if len(received) == 1 else 200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Listener) as listener:
        thread = threading.Thread(target=listener.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listener.server_port}"
        listener.shutdown()
        thread.join()


def test_pod_sets_its_role_label_until_it_is_accepted(account, received, url, monkeypatch):
    monkeypatch.setattr(pod, "AGAIN_SECONDS", 0.01)
    found = Pod.of(GIVEN, account)
    assert found.api == "https://10.0.0.1:6443"
    found.api = url
    superseded, last = found.become("standby"), found.become("active")
    superseded.join(10)
    last.join(10)
    path, token, kind, body = received[-1]
    assert path == "/api/v1/namespaces/replication/pods/lake-0"
    assert (token, kind) == ("Bearer secret", "application/merge-patch+json")
    assert body == {"metadata": {"labels": {"cdf-replicator/role": "active"}}}


def test_no_pod_is_found_outside_kubernetes():
    assert Pod.of({}) is None
    assert Pod.of({name: value for name, value in GIVEN.items() if name != "POD_ROLE_LABEL"}) is None
