"""Limit the size and number of requests to a sink.

After refusals and slow responses the service sends smaller chunks, then one request at a time. It never exceeds the
configured rows per second.
"""

from __future__ import annotations

import fcntl
import os
import struct
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from connectors import Addressed, RetryableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from connectors import ArrowSettings, ArrowSink

THROTTLE_REASONS: Final = frozenset({"overloaded", "timeout"})
"""Reasons of a ``RetryableError`` that a smaller request may avoid."""
SLOW_SECONDS: Final = 5.0
DECREASE: Final = 1 / 2
INCREASE: Final = 1 / 16
MIN_SHARE: Final = 1 / 64
MIN_SHARE_IF_SLOW: Final = 1 / 4
"""Lowest share after slow responses: some servers respond slowly to a request of any size."""
ALONE: Final = 1 / 4
LONGEST_QUEUE: Final = 3600.0


@dataclass(slots=True)
class BackPressure:
    """The share of a chunk's bounds that a request may use.

    Additive increase and multiplicative decrease, as in TCP (RFC 5681). Each refusal and each slow response halves the
    share. Each good response adds a sixteenth of the bounds.

    Args:
        settings: The bounds of a chunk.
        share: The present share, from 0 to 1.
        refuses: Whether the last refusal was a response of the sink and not a timeout.
    """

    settings: ArrowSettings
    share: float = 1.0
    refuses: bool = False

    def batch_rows(self, chunk: pa.RecordBatch) -> int:
        """Return the number of rows of a chunk to send now, by their average bytes."""
        there: int = chunk.num_rows
        per_row = max(1, chunk.nbytes // there)
        most = min(self.settings.chunk_rows, self.settings.chunk_bytes // per_row)
        if self.settings.rows_per_second:  # limits the wait in ``rate_limit_delay``, which can't be interrupted
            most = min(most, self.settings.rows_per_second)
        return min(there, max(1, int(most * self.share)))

    def on_refused(self, error: RetryableError) -> None:
        if error.reason in THROTTLE_REASONS:
            self.share = max(MIN_SHARE, self.share * DECREASE)
            self.refuses = error.reason != "timeout"  # a timeout does not serialize requests

    def on_success(self, seconds: float) -> None:
        if seconds > SLOW_SECONDS:
            self.share = min(self.share, max(MIN_SHARE_IF_SLOW, self.share * DECREASE))
        else:
            self.share = min(1.0, self.share + INCREASE)

    @contextmanager
    def slot(self, sink: ArrowSink) -> Iterator[None]:
        """Hold this context during a request; after refusals, only a single request per machine is under way."""
        if self.refuses and self.share <= ALONE:
            with _shared(sink, "alone"):
                yield
        else:
            yield


def rate_limit_delay(sink: ArrowSink, rows: int, clock: Callable[[], float] = time.monotonic) -> float:
    """Reserve the next time slot for ``batch_rows`` rows; returns the seconds to wait for it."""
    limit = sink.settings.rows_per_second
    if limit is None:
        return 0.0
    with _shared(sink, "turns") as file:
        now = clock()
        (free,) = struct.unpack("<d", file.read(8).ljust(8, b"\0"))
        begin = free if now < free < now + LONGEST_QUEUE else now  # a later time comes from before a reboot
        file.seek(0)
        file.write(struct.pack("<d", begin + rows / limit))
    return begin - now


@contextmanager
def _shared(sink: ArrowSink, what: str) -> Iterator[IO[bytes]]:
    """Lock the file that all writers to an endpoint share on this machine: worker processes share nothing else."""
    place = f"{os.getuid()} {sink.settings.type} {sink.endpoint if isinstance(sink, Addressed) else sink.settings!r}"
    path = Path(tempfile.gettempdir()) / f"cdf-{what}-{sha256(place.encode()).hexdigest()[:16]}"
    try:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b", buffering=0)
    except OSError as error:
        raise RetryableError("unavailable", f"the lock file {path} can't be opened: {error}") from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
