"""A node of a cluster of several, which has to show within seconds that it answers before it is given a request."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Final

from elastic_transport import ConnectionError as NoConnectionError
from elastic_transport import ConnectionTimeout, HttpHeaders, NodeConfig, Urllib3HttpNode
from elastic_transport.client_utils import DEFAULT

if TYPE_CHECKING:
    from elastic_transport._node import NodeApiResponse
    from elastic_transport.client_utils import DefaultType

log = logging.getLogger(__name__)

PROBE_SECONDS: Final = 2.0
KNOWN_SECONDS: Final = 10.0
"""How long an answer shows that a node is there."""


class ProbedNode(Urllib3HttpNode):
    """Sends ``HEAD /`` first where the node has not answered lately.

    A host that accepts connections and says nothing would else hold each request for the whole of its timeout. A silent
    probe is an error of the connection, after which the transport takes another node; a request that was sent and has
    timed out is not, since a second copy of it would double the load of a cluster that is merely slow.
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
        """Probe the node if need be, then send the request; raises what the transport knows."""
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
