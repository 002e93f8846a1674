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


def test_what_is_cut_arrives_in_part_and_the_connection_ends(proxy, client):
    proxy.mode = "cut"
    client.sendall(b"a" * 5000)
    received = b""
    with suppress(ConnectionResetError):
        while data := client.recv(65_536):
            received += data
    assert len(received) < 5000


def test_a_hanging_server_takes_what_it_is_sent_and_says_nothing(proxy, client):
    proxy.mode = "hang"
    client.settimeout(0.5)
    client.sendall(b"hello")
    with pytest.raises(TimeoutError):
        client.recv(10)
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=1) as another:
        another.sendall(b"hello")
        with pytest.raises(TimeoutError):
            another.recv(10)


def test_one_that_refuses_ends_every_connection(proxy, client):
    proxy.mode = "refuse"
    assert client.recv(10) == b""
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=1) as another:
        assert another.recv(10) == b""


def test_garbage_is_an_answer_of_no_protocol(proxy, client):
    proxy.mode = "garbage"
    client.sendall(b"hello")
    assert client.recv(2000) == NONSENSE


def test_a_slow_one_passes_everything_on_after_a_while(proxy, client):
    proxy.mode = "slow"
    began, data = time.monotonic(), b"s" * 20_000
    client.settimeout(10)
    client.sendall(data)
    received = b""
    while len(received) < len(data):
        received += client.recv(65_536)
    assert received == data
    assert time.monotonic() - began > 0.2


def test_after_all_that_it_passes_on_as_before(proxy, client):
    for mode in ("hang", "pass"):
        proxy.mode = mode
        time.sleep(0.2)
    client.sendall(b"again")
    assert client.recv(10) == b"again"
