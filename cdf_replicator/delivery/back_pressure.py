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

from connectors import RetryableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from connectors import ArrowSettings, ArrowSink

TOO_MUCH: Final = frozenset({"overloaded", "timeout"})
"""Reasons of a ``RetryableError`` that a smaller request may not meet."""
SLOW_SECONDS: Final = 5.0
LESS: Final = 1 / 2
MORE: Final = 1 / 16
LEAST: Final = 1 / 64
LEAST_IF_SLOW: Final = 1 / 4
"""Some answer slowly whatever they are asked."""
ALONE: Final = 1 / 4
LONGEST_QUEUE: Final = 3600.0


@dataclass(slots=True)
class Pressure:
    """``share`` of the bounds of a chunk that is sent at once.

    Additive increase, multiplicative decrease, as TCP does it (RFC 5681): half after each refusal or slow answer, a
    sixteenth of the bounds more after each good one. ``refuses``: the last refusal was one, not a silence.
    """

    settings: ArrowSettings
    share: float = 1.0
    refuses: bool = False

    def rows(self, chunk: pa.RecordBatch) -> int:
        """How many rows of a chunk to send now, by their average bytes."""
        there: int = chunk.num_rows
        per_row = max(1, chunk.nbytes // there)
        most = min(self.settings.chunk_rows, self.settings.chunk_bytes // per_row)
        if self.settings.rows_per_second:  # so that nobody sleeps for long, which can't be stopped
            most = min(most, self.settings.rows_per_second)
        return min(there, max(1, int(most * self.share)))

    def refused(self, error: RetryableError) -> None:
        if error.reason in TOO_MUCH:
            self.share = max(LEAST, self.share * LESS)
            self.refuses = error.reason != "timeout"  # who hangs is not waited for one by one

    def taken(self, seconds: float) -> None:
        if seconds > SLOW_SECONDS:
            self.share = min(self.share, max(LEAST_IF_SLOW, self.share * LESS))
        else:
            self.share = min(1.0, self.share + MORE)

    @contextmanager
    def room(self, sink: ArrowSink) -> Iterator[None]:
        """Held while a request is under way; where the sink is short of something, one at a time from this machine."""
        if self.refuses and self.share <= ALONE:
            with _shared(sink, "alone"):
                yield
        else:
            yield


def turn(sink: ArrowSink, rows: int, clock: Callable[[], float] = time.monotonic) -> float:
    """Return how many seconds to wait before so many rows may be sent, which takes their turn."""
    limit = sink.settings.rows_per_second
    if limit is None:
        return 0.0
    with _shared(sink, "turns") as file:
        now = clock()
        (free,) = struct.unpack("<d", file.read(8).ljust(8, b"\0"))
        begin = free if now < free < now + LONGEST_QUEUE else now  # what lies further ahead is of before a reboot
        file.seek(0)
        file.write(struct.pack("<d", begin + rows / limit))
    return begin - now


@contextmanager
def _shared(sink: ArrowSink, what: str) -> Iterator[IO[bytes]]:
    """A locked file, one for all who write to an endpoint from this machine: worker processes share nothing else."""
    place = f"{os.getuid()} {sink.settings.type} {sink.endpoint or sink.settings!r}"
    path = Path(tempfile.gettempdir()) / f"cdf-{what}-{sha256(place.encode()).hexdigest()[:16]}"
    try:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b", buffering=0)
    except OSError as error:
        raise RetryableError("unavailable", f"{path} can't be opened, by which writers take turns: {error}") from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
