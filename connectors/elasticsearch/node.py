"""Configure the connections to a node, and probe a node of a cluster of several hosts before a request.

The probe lets a silent host delay the request by seconds only.
"""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Final

from elastic_transport import ConnectionError as NoConnectionError
from elastic_transport import ConnectionTimeout, HttpHeaders, NodeConfig, Urllib3HttpNode
from elastic_transport.client_utils import DEFAULT, url_to_node_config

if TYPE_CHECKING:
    from elastic_transport._node import NodeApiResponse
    from elastic_transport.client_utils import DefaultType

    from connectors.elasticsearch.settings import DocumentSettings

log = logging.getLogger(__name__)

CONNECTIONS: Final = 64
"""Connections to one node at once. The routes of a process share the client, and a further request waits without a limit."""
PROBE_SECONDS: Final = 2.0
KNOWN_SECONDS: Final = 10.0
"""Time after an answer during which a node needs no probe."""


def config_of(host: str, settings: DocumentSettings) -> NodeConfig:
    """Return the transport's description of a host."""
    return url_to_node_config(host).replace(
        ca_certs=str(settings.ca_certs) if settings.ca_certs else None,
        verify_certs=settings.verify_certs,
        ssl_show_warn=False,
        connections_per_node=CONNECTIONS,
    )


class ProbedNode(Urllib3HttpNode):
    """A node that receives ``HEAD /`` before a request if its last answer is older than ``KNOWN_SECONDS``.

    Without the probe, a host that accepts connections but sends no answer delays each request by the whole timeout. A
    probe that times out is a connection error, and the transport uses another node. A request that times out is no
    connection error: a second copy of it would double the load of a slow cluster.
    """

    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        self._answered_at = -math.inf
        self._silent = False

    def perform_request(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: HttpHeaders | None = None,
        request_timeout: DefaultType | float | None = DEFAULT,
    ) -> NodeApiResponse:
        """Probe the node if its last answer is too old, then send the request; raise the transport's errors only."""
        if time.monotonic() - self._answered_at > KNOWN_SECONDS:
            self._probe(headers)
        try:
            response = super().perform_request(method, target, body, headers, request_timeout)
        except Exception:
            self._answered_at = -math.inf
            raise
        self._answered_at = time.monotonic()
        return response

    def _probe(self, headers: HttpHeaders | None) -> None:
        try:
            super().perform_request("HEAD", "/", headers=headers, request_timeout=PROBE_SECONDS)
        except ConnectionTimeout as error:
            if not self._silent:
                log.warning("%s does not answer: the other hosts are used", self.base_url)
            self._silent = True
            raise NoConnectionError(f"{self.base_url} does not answer", errors=(error,)) from error
        self._silent = False
