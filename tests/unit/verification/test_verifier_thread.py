"""A verifier that replaces another begins when that one has ended, since both cancel the same jobs."""

from __future__ import annotations

import threading

from cdf_replicator.verification import VerifierThread


class Verifier:
    """A verifier that ends some time after it is cancelled, when ``may_end`` is set."""

    def __init__(self) -> None:
        self.began, self.cancelled, self.may_end = threading.Event(), threading.Event(), threading.Event()

    def run(self, over: threading.Event) -> None:
        self.began.set()
        over.wait(10)
        self.cancelled.set()
        self.may_end.wait(10)


def test_next_verifier_begins_when_the_former_has_ended():
    thread, former, following = VerifierThread(), Verifier(), Verifier()
    thread.stop()
    thread.join(1)
    thread.start(former)
    assert former.began.wait(10)
    thread.stop()
    assert former.cancelled.wait(10)
    thread.start(following)
    assert not following.began.wait(0.1)
    former.may_end.set()
    assert following.began.wait(10)
    assert not following.cancelled.is_set()
    following.may_end.set()
    thread.stop()
    thread.join(10)
    assert following.cancelled.is_set()
