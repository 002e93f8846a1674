"""Run the background verifier in a thread, which a reload of the configuration replaces."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from cdf_replicator.verification.requests import ComparisonRequests

if TYPE_CHECKING:
    from cdf_replicator.verification.background import BackgroundVerifier


class VerifierThread:
    """The thread of the present verifier; none runs before ``start``. ``requests`` are those of all verifiers."""

    def __init__(self) -> None:
        self.requests = ComparisonRequests()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, verifier: BackgroundVerifier) -> None:
        """Start a verifier, which begins when the former one has ended."""
        former, self._over = self._thread, threading.Event()
        given = verifier, self._over, former
        self._thread = threading.Thread(target=_run, args=given, name="verify", daemon=True)
        self._thread.start()
        self.requests.open()

    def stop(self) -> None:
        """Cancel the running comparison and end the thread."""
        self._over.set()
        self.requests.close()

    def join(self, seconds: float) -> None:
        if self._thread is not None:
            self._thread.join(seconds)


def _run(verifier: BackgroundVerifier, over: threading.Event, former: threading.Thread | None) -> None:
    if former is not None:  # both cancel the same group of jobs
        former.join()
    if not over.is_set():
        verifier.run(over)
