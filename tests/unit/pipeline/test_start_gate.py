"""The gate that limits how many routes start at the same time."""

import threading
from contextlib import ExitStack

import pytest

from cdf_replicator.pipeline import context
from cdf_replicator.pipeline.context import Interrupt, StartGate


@pytest.fixture
def stop():
    return threading.Event()


@pytest.fixture
def interrupt(stop):
    return Interrupt(stop)


@pytest.fixture
def gate(monkeypatch):
    monkeypatch.setattr(context, "POLL_SECONDS", 0.01)
    return StartGate()


@pytest.fixture
def full(gate, interrupt):
    """Every place is held; closing the stack frees one after the other."""
    with ExitStack() as places:
        for _ in range(context.STARTS_AT_ONCE):
            assert places.enter_context(gate.place(interrupt))
        yield places


@pytest.fixture
def waiting(gate, full, interrupt):
    """A thread that wants a place while none is free, and what it got."""
    got = []

    def wait():
        with gate.place(interrupt) as entered:
            got.append(entered)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    return thread, got


def test_route_waits_while_others_start_and_enters_after_an_end(waiting, full):
    thread, got = waiting
    full.close()
    thread.join(10)
    assert got == [True]


def test_waiting_route_starts_if_no_start_ends(waiting, monkeypatch):
    """The bootstrap of a large table, or a sink that hangs, delays no other route."""
    thread, got = waiting
    monkeypatch.setattr(context, "LONGEST_START_SECONDS", 0.0)
    thread.join(10)
    assert got == [True]


def test_interrupt_ends_the_wait_without_a_place(waiting, stop, gate, full, interrupt):
    thread, got = waiting
    stop.set()
    thread.join(10)
    assert got == [False]
    full.close()
    with ExitStack() as places:
        assert all(places.enter_context(gate.place(interrupt)) for _ in range(context.STARTS_AT_ONCE))


def test_failed_start_frees_its_place(gate, interrupt):
    def fail():
        with gate.place(interrupt) as entered:
            assert entered
            raise ConnectionError("down")

    for _ in range(2 * context.STARTS_AT_ONCE):
        with pytest.raises(ConnectionError, match="down"):
            fail()
