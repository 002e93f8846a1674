"""The proxy that the chaos suite puts in front of servers injects the faults that a test sets."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

import pytest

from tests.chaos.proxy import NONSENSE, Proxy


@pytest.fixture
def echo():
    """The port of a server that answers each message with itself."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer(client):
        with client, suppress(ConnectionError):
            while data := client.recv(65_536):
                client.sendall(data)

    def accept():
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield listening.getsockname()[1]
    listening.close()


@pytest.fixture
def proxy(echo):
    with Proxy(echo) as started:
        yield started


@pytest.fixture
def client(proxy):
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as connected:
        connected.sendall(b"x")
        assert connected.recv(10) == b"x"
        yield connected


def test_cut_response_arrives_in_part_and_ends_the_connection(proxy, client):
    proxy.mode = "cut"
    client.sendall(b"a" * 5000)
    received = b""
    with suppress(ConnectionResetError):
        while data := client.recv(65_536):
            received += data
    assert len(received) < 5000


def test_hanging_server_reads_requests_and_sends_nothing(proxy, client):
    proxy.mode = "hang"
    client.settimeout(0.5)
    client.sendall(b"hello")
    with pytest.raises(TimeoutError):
        client.recv(10)
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=1) as another:
        another.sendall(b"hello")
        with pytest.raises(TimeoutError):
            another.recv(10)


def test_refusing_proxy_closes_every_connection(proxy, client):
    proxy.mode = "refuse"
    assert client.recv(10) == b""
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=1) as another:
        assert another.recv(10) == b""


def test_garbage_is_a_response_of_no_protocol(proxy, client):
    proxy.mode = "garbage"
    client.sendall(b"hello")
    assert client.recv(2000) == NONSENSE


def test_slow_proxy_forwards_everything_after_a_delay(proxy, client):
    proxy.mode = "slow"
    began, data = time.monotonic(), b"s" * 20_000
    client.settimeout(10)
    client.sendall(data)
    received = b""
    while len(received) < len(data):
        received += client.recv(65_536)
    assert received == data
    assert time.monotonic() - began > 0.2


def test_proxy_forwards_unchanged_after_the_faults(proxy, client):
    for mode in ("hang", "pass"):
        proxy.mode = mode
        time.sleep(0.2)
    client.sendall(b"again")
    assert client.recv(10) == b"again"
