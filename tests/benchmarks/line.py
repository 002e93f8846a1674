"""A line to a server on which everything arrives late, in both directions."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import Iterator

HOST = "127.0.0.1"
PIECE = 65_536


@contextmanager
def late(upstream: int, seconds: float) -> Iterator[int]:
    """Give a port whose connections reach the port ``upstream``, each byte after so many seconds."""
    port: Future[int] = Future()
    ended = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_serve(upstream, seconds, port, ended)))
    thread.start()
    try:
        yield port.result()
    finally:
        ended.set()
        thread.join()


async def _serve(upstream: int, seconds: float, port: Future[int], ended: threading.Event) -> None:
    async def connect(requests: StreamReader, client: StreamWriter) -> None:
        replies, server = await asyncio.open_connection(HOST, upstream)
        await asyncio.gather(_forward(requests, server, seconds), _forward(replies, client, seconds))

    async with await asyncio.start_server(connect, HOST, 0) as listening:
        port.set_result(listening.sockets[0].getsockname()[1])
        await asyncio.to_thread(ended.wait)


async def _forward(reader: StreamReader, writer: StreamWriter, seconds: float) -> None:
    later = asyncio.get_running_loop().call_later
    try:
        while data := await reader.read(PIECE):
            later(seconds, writer.write, data)
    except ConnectionError:  # a client that ends
        pass
    later(seconds, writer.close)
