"""Serve metrics, probes, status and the pages on one port, and control endpoints and queries with a token.

Handlers read the status store, also through the metrics registry, and write commands under the state path. No request reaches Delta
or a sink, except a query, which runs in a thread of its own.
"""

from __future__ import annotations

import errno
import socket
from threading import Thread
from typing import TYPE_CHECKING, Final

import orjson
import uvicorn
from fastapi import Depends, FastAPI, Request, Response
from prometheus_client.exposition import choose_encoder
from starlette.middleware.gzip import GZipMiddleware

from cdf_replicator import __version__
from cdf_replicator.monitoring.health import unready_routes
from cdf_replicator.server import actions, views
from cdf_replicator.server import queries as query_endpoint
from cdf_replicator.server.access import reader
from cdf_replicator.server.connection import BACKLOG, BoundedConnection
from cdf_replicator.server.control import BODY_BYTES, router

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from cdf_replicator.monitoring.metrics import Metrics
    from cdf_replicator.monitoring.status_store import StatusStore
    from cdf_replicator.server.control import Control
    from cdf_replicator.server.queries import Queries

    Live = Callable[[], str | None]
    """A function that returns why the service is not alive, as a text for operators; None while it is alive."""

STOP_SECONDS: Final = 5
COMPRESSED_FROM_BYTES: Final = 2_000
PROBES: Final = {"/livez", "/healthz", "/readyz"}
"""Paths that need no token."""
WAITING_FIELDS: Final = ("route", "table", "sink", "state", "since", "last_error")
"""Fields of a route's status in the answer of /readyz."""
HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


class BindError(Exception):
    """The server can't listen on the address; the text names it and the variable to change."""


class Server:
    """A started HTTP server.

    Args:
        app: the application.
        listener: listening socket; ``port`` is its port.

    """

    def __init__(self, app: FastAPI, listener: socket.socket) -> None:
        self.port: int = listener.getsockname()[1]
        # uvicorn must not handle signals: SIGTERM belongs to the main thread. Lifespan and websockets are not used.
        config = uvicorn.Config(
            app,
            access_log=False,
            log_config=None,
            lifespan="off",
            ws="none",
            http=BoundedConnection,  # h11 limits the head of a request; _too_much limits the body
            backlog=BACKLOG,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = Thread(target=self._server.run, args=([listener],), name="http", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Finish running answers and close the port; may be called twice."""
        self._server.should_exit = True
        self._thread.join(STOP_SECONDS)


def start(
    board: StatusStore,
    metrics: Metrics,
    host: str,
    port: int,
    live: Live,
    control: Control | None = None,
    read_tokens: Collection[str] = (),
    queries: Queries | None = None,
) -> Server:
    """Serve in a separate thread until ``stop``; port 0 selects any free one. Raises ``BindError``."""
    server = Server(application(board, metrics, live, control, read_tokens, queries), _listen(host, port))
    if queries is not None:
        queries.listening = (host.strip("[]"), server.port)
    return server


def application(
    board: StatusStore,
    metrics: Metrics,
    live: Live,
    control: Control | None = None,
    read_tokens: Collection[str] = (),
    queries: Queries | None = None,
) -> FastAPI:
    """Return the endpoints without a server.

    Without ``control`` there are no control endpoints, and no queries without ``queries``. Without ``read_tokens`` every
    caller may read.
    """
    app = FastAPI(title="cdf-replicator", version=__version__, docs_url=None, redoc_url=None)
    app.add_middleware(GZipMiddleware, minimum_size=COMPRESSED_FROM_BYTES)
    app.middleware("http")(_with_headers)

    def scrape(request: Request) -> Response:
        """Return the metrics for Prometheus."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(metrics.registry), headers={"Content-Type": content_type})

    def liveness() -> Response:
        """Return 200 as long as a restart would not help."""
        reason = live()
        return _json({"live": reason is None, "reason": reason, **board.identity}, 200 if reason is None else 503)

    def readiness() -> Response:
        """Return 200 if every route runs and its sink answered, or in a standby; else 503 with the waiting routes."""
        status = board.snapshot()
        service = status.service
        routes = [{name: getattr(route, name) for name in WAITING_FIELDS} for route in unready_routes(status)]
        runs = bool(status.routes) and not routes
        ready = (runs or service.standing_by) and service.state != "stopping"
        named = {"reason": service.summary, "waiting": routes}  # only for callers that may read
        state = "standby" if service.standing_by and service.state == "starting" else service.state
        details = {"reason": state} if read_tokens else named
        return _json({"ready": ready, **details}, 200 if ready else 503)

    def status() -> Response:
        """Return everything that the page shows, as JSON."""
        return _json(board.snapshot(), 200)

    answers: dict[str, Callable[..., Response]] = {
        "/metrics": scrape,
        "/livez": liveness,
        "/healthz": liveness,
        "/readyz": readiness,
        "/status": status,
    }
    protection = [Depends(reader(read_tokens))] if read_tokens else []
    for path, answer in answers.items():
        needs = [] if path in PROBES else protection
        name = path.strip("/")
        app.add_api_route(path, answer, methods=["GET"], response_class=Response, name=name, dependencies=needs)
        app.add_api_route(path, answer, methods=["HEAD"], include_in_schema=False, dependencies=needs)
    app.include_router(views.router(board, control), dependencies=protection)
    if control is not None:
        app.state.control = control
        app.include_router(router)
        app.include_router(actions.router(board, control, queries), dependencies=protection)
    if queries is not None:
        app.state.queries = queries
        app.include_router(query_endpoint.router)
    return app


async def _with_headers(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    response = _too_much(request) or await answer(request)
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def _too_much(request: Request) -> Response | None:
    """Return an error for a body of unknown or excessive length, which is not read."""
    said = request.headers.get("content-length", "0")
    if "transfer-encoding" in request.headers:
        return _json({"detail": "Send a Content-Length."}, 411)
    if not said.isdecimal() or int(said) > BODY_BYTES:
        return _json({"detail": f"The body is limited to {BODY_BYTES} bytes."}, 413)
    return None


def _json(content: object, status_code: int) -> Response:
    return Response(orjson.dumps(content, option=orjson.OPT_UTC_Z), status_code, media_type="application/json")


def _listen(host: str, port: int) -> socket.socket:
    host = host.strip("[]")  # as in a URL
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = host == "::" and socket.has_dualstack_ipv6()
    try:
        listener = socket.create_server((host, port), family=family, dualstack_ipv6=both)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            message = f"port {port} on {host} is in use by another process: set CDF_HTTP__BIND_PORT to a free port"
        elif error.errno == errno.EACCES:
            message = f"port {port} may not be opened by this user: set CDF_HTTP__BIND_PORT to 1024 or higher"
        else:
            message = (
                f"cannot listen on {host}: {error.strerror or error}: set CDF_HTTP__HOST to an address of this machine"
            )
        raise BindError(message) from error
    # Connections inherit TCP_NODELAY; without it, head and body of an answer are 40 ms apart.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
