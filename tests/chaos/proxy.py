"""A TCP proxy in front of a server. It forwards everything unless a fault mode is set.

pass     as if it were not there
refuse   takes no connection, and ends those there are
hang     takes connections and what is sent, and passes nothing on
stall    passes half of something that a client sends on, and nothing after it
cut      ends a connection in the middle of what a client sends
garbage  answers with bytes that are no protocol's
slow     passes a few thousand bytes on, then pauses
"""

from __future__ import annotations

import select
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

Mode = Literal["pass", "refuse", "hang", "stall", "cut", "garbage", "slow"]

PIECE: Final = 65_536
CUT_AFTER: Final = 1000
HALVING: Final = ("cut", "stall")
SLOW_PIECE: Final = 4096
SLOW_SECONDS: Final = 0.05
LOOK_SECONDS: Final = 0.1
NONSENSE: Final = bytes(range(255, 0, -1)) * 4


class Proxy:
    """Listens on a port of its own from ``with`` on; ``mode`` may be set at any time, and holds for open connections too.

    ``upstream``: the port to which the next connections lead. ``stalled``: connections that hang in the middle of what a client
    sends. ``slowed``: pieces that were held up.
    """

    def __init__(self, upstream: int) -> None:
        self.mode: Mode = "pass"
        self.stalled = self.slowed = 0
        self.upstream = upstream
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(LOOK_SECONDS)
        self.port: int = self._listening.getsockname()[1]
        self._closed = False
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        for thread in self._threads:
            thread.join()
        self._listening.close()

    def _accept(self) -> None:
        while not self._closed:
            with suppress(TimeoutError):
                client, _ = self._listening.accept()
                self._threads = [thread for thread in self._threads if thread.is_alive()]
                serving = threading.Thread(target=self._serve, args=(client,), daemon=True)
                self._threads.append(serving)
                serving.start()

    def _stall(self) -> None:
        """Unless the connection ends at once."""
        self.stalled += self.mode == "stall"
        while self.mode == "stall" and not self._closed:
            time.sleep(LOOK_SECONDS)

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", self.upstream)) as server:
            sent = 0
            while not self._closed:
                readable, _, _ = select.select([client, server], [], [], LOOK_SECONDS)
                mode = self.mode  # read after select, since it may have changed meanwhile
                if mode == "refuse":
                    return
                for one in readable if mode != "hang" else [each for each in readable if each is client]:
                    data = one.recv(SLOW_PIECE if mode == "slow" else PIECE)
                    if not data:
                        return
                    if one is client:
                        sent += len(data)
                    if one is client and mode in HALVING and sent > CUT_AFTER:
                        server.sendall(data[: len(data) // 2])
                        self._stall()
                        return
                    if mode == "garbage":
                        client.sendall(NONSENSE)
                        return
                    if mode == "slow":
                        self.slowed += 1
                        time.sleep(SLOW_SECONDS)
                    if mode != "hang":
                        (server if one is client else client).sendall(data)
