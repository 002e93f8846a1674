"""Tests of the role label of a pod: the request to the API server, and its retries."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest

from cdf_replicator import settings
from cdf_replicator.runtime import exit_codes, pod
from cdf_replicator.runtime.pod import Pod
from cdf_replicator.runtime.reload import Selection
from cdf_replicator.runtime.supervisor import Supervisor

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
            if self.path.endswith("/garbled-0") and len(received) == 1:
                self.wfile.write(b"no status line\r\n")
                return
            self.send_response(403 if len(received) == 1 else 404 if self.path.endswith("/gone-1") else 200)
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
    own, other = "/api/v1/namespaces/replication/pods/lake-0", "/api/v1/namespaces/replication/pods/lake-1"
    assert {sent[1:3] for sent in received} == {("Bearer secret", "application/merge-patch+json")}
    roles = [(path, body["metadata"]["labels"]["cdf-replicator/role"]) for path, _, _, body in received]
    assert roles[-2:] == [(own, "active"), (other, "standby")], "a pod that has died keeps its label"


def test_standby_and_pod_without_a_number_set_their_own_label_alone(account, received, url):
    received.append(None)  # the next request is accepted
    for name, role in (("lake-0", "standby"), ("lake-7f9c", "active")):
        Pod("role", name, url, account).become(role).join(10)
    assert [sent[0].rpartition("/")[2] for sent in received[1:]] == ["lake-0", "lake-7f9c"]


def test_takeover_is_complete_without_the_other_pod(account, received, url):
    received.append(None)
    Pod("role", "gone-0", url, account).become("active").join(10)
    assert [sent[0].rpartition("/")[2] for sent in received[1:]] == ["gone-0", "gone-1"], "404 is not repeated"


def test_malformed_answer_is_repeated(account, received, url, monkeypatch):
    monkeypatch.setattr(pod, "AGAIN_SECONDS", 0.01)
    Pod("role", "garbled-0", url, account).become("standby").join(10)
    assert [sent[0].rpartition("/")[2] for sent in received] == ["garbled-0", "garbled-0"]


def test_label_is_set_without_the_proxy_of_the_environment(account, received, url, monkeypatch):
    received.append(None)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    Pod("role", "lake-0", url, account).become("standby").join(1)
    assert len(received) == 2


def test_service_begins_as_a_standby_whatever_label_its_pod_has(content, monkeypatch):
    class Noted:
        roles: ClassVar[list[str]] = []

        def become(self, role):
            self.roles.append(role)

    content(state_path="/dev/null/state")
    service = Supervisor(settings.load(), Selection(), once=False, standby=True)
    monkeypatch.setattr(service, "_pod", Noted())
    monkeypatch.setattr(service, "_take_signals", lambda: None)
    assert service.run() == exit_codes.CONFIGURATION
    assert Noted.roles == ["standby"]


def test_command_keeps_the_label_of_the_pod_in_which_it_runs(content, monkeypatch):
    content(state_path="/dev/null/state")
    for name, value in GIVEN.items():
        monkeypatch.setenv(name, value)
    service, command = (Supervisor(settings.load(), Selection(), once=once)._pod for once in (False, True))
    assert (service.name, command) == ("lake-0", None)


def test_no_pod_is_found_outside_kubernetes():
    assert Pod.of({}) is None
    assert Pod.of({name: value for name, value in GIVEN.items() if name != "POD_ROLE_LABEL"}) is None
