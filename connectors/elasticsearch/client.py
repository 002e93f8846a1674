"""Send requests to one cluster, and classify its refusals.

The requests use the transport below Elastic's client, whose media types belong to one major version and which refuses
OpenSearch. A plain content type and an authorization header built here work with each. Bodies are bytes. Nothing is retried
here, with one exception: if a host can't be reached, the request goes to another host. An answer ends the request, whatever its status.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import elastic_transport
import orjson

from connectors.elasticsearch.dialect import DIALECTS, OLDER
from connectors.elasticsearch.node import ProbedNode, config_of
from connectors.errors import RECONFIGURE, PermanentError, RetryableError, SinkError, certificate_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from connectors.elasticsearch.dialect import Dialect
    from connectors.elasticsearch.settings import DocumentSettings

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
BLOCKS: Final = {"cluster_block_exception", "index_create_block_exception"}  # the second is of OpenSearch
EXISTS: Final = "resource_already_exists_exception"

NO_VECTORS: Final = re.compile(r"No handler for type \[knn_vector\]|unknown setting \[index\.knn[.\]]")

KEY_UNREAD: Final = b" encountered a failure"
"""Part of a 401 of Elasticsearch that could not read an API key, since its security index is not available, as during a restart."""
UNAUTHORISED, FORBIDDEN, NOT_FOUND, TOO_MANY, SERVER_ERROR = 401, 403, 404, 429, 500


class _Bytes(elastic_transport.Serializer):
    def dumps(self, data: bytes) -> bytes:
        return data

    def loads(self, data: bytes) -> bytes:
        return data


@dataclass(frozen=True, slots=True)
class Reply:
    dialect: Dialect
    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def ok(self) -> bool:
        return self.status in range(200, 300)

    @property
    def genuine(self) -> bool:
        """Return whether the product sent the answer."""
        return self.dialect.identifies(self.headers)

    @property
    def error(self) -> tuple[str, str]:
        """Return type and reason of the error; without a type an empty type and the first 200 characters of the body.

        The reason of a search is that of its first shard.
        """
        try:
            error = orjson.loads(self.body)["error"]
            if not isinstance(error, dict):
                return "", str(error)
            causes = error.get("root_cause") if error["type"] == "search_phase_execution_exception" else None
            return error["type"] or "", (causes or [error])[0].get("reason") or ""
        except (ValueError, KeyError, TypeError):
            return "", self.body[:200].decode(errors="replace")

    @property
    def retry_after(self) -> float | None:
        text = self.headers.get("retry-after", "")
        return float(text) if text.isdecimal() else None

    def json(self, loads: Callable[[bytes], Any] = orjson.loads) -> Any:
        """Return the parsed body; raise ``RetryableError`` if the product did not send it."""
        if self.genuine:
            try:
                return loads(self.body)
            except ValueError:
                pass
        raise RetryableError("unavailable", f"the answer does not come from {self.dialect.product}: {self.error[1]!r}")


class Cluster:
    """A client of one cluster. It raises ``RetryableError`` and ``PermanentError`` only, except for bugs."""

    def __init__(self, settings: DocumentSettings) -> None:
        self.dialect = settings.dialect
        self._headers = {"accept": JSON, **_authorization(settings)}
        self._settings = settings
        self._others = len(settings.hosts) - 1
        raw = _Bytes()
        try:
            if settings.ca_certs:
                settings.ca_certs.open().close()
            self._transport = elastic_transport.Transport(
                [config_of(host, settings) for host in settings.hosts],
                node_class=ProbedNode if self._others else elastic_transport.Urllib3HttpNode,
                retry_on_status=(),
                serializers=dict.fromkeys((JSON, NDJSON, "text/plain", "text/*", "application/*"), raw),
            )
        except OSError as error:
            raise PermanentError(
                f"CA_CERTS can't be read: {error}.", f"Name a readable PEM file, then {RECONFIGURE}"
            ) from error

    def send(
        self, method: str, target: str, body: bytes | None = None, content_type: str = JSON, **headers: str
    ) -> Reply:
        """Return the answer, whatever its status; raise an error if there is none."""
        headers = {**self._headers, "content-type": content_type, **headers}
        try:
            meta, data = self._transport.perform_request(
                method,
                target,
                headers=headers,
                body=body,
                request_timeout=self._settings.request_timeout,
                max_retries=self._others,
            )
        except elastic_transport.ConnectionTimeout as error:
            raise RetryableError("timeout", f"{method} {target}: no answer in time") from error
        except elastic_transport.TlsError as error:
            _clusters.pop(self._settings, None)  # the next client reads CA_CERTS again
            raise certificate_error(self.dialect.product, error.message) or RetryableError(
                "unreachable", error.message
            ) from error
        except elastic_transport.ConnectionError as error:
            raise RetryableError("unreachable", error.message) from error
        except elastic_transport.SerializationError as error:
            raise RetryableError(
                "unavailable", f"the answer does not come from {self.dialect.product}: {error}"
            ) from error
        return Reply(self.dialect, meta.status, meta.headers, data or b"")

    def request_json(self, method: str, target: str, body: object = None) -> Any:
        """Return the JSON of ``request``."""
        return self.request(method, target, body).json()

    def request(self, method: str, target: str, body: object = None) -> Reply:
        """Send JSON and return the answer; raise the error of ``refusal`` if its status is not 2xx."""
        reply = self.send(method, target, None if body is None else orjson.dumps(body))
        if not reply.ok:
            raise refusal(reply, f"{method} {target}")
        return reply

    def find(self, target: str) -> Any:
        """Return the JSON of a GET; None if there is no such index or alias."""
        reply = self.send("GET", target)
        if reply.status == NOT_FOUND and reply.genuine:
            return None
        if not reply.ok:
            raise refusal(reply, f"GET {target}")
        return reply.json()

    def create(self, target: str, body: object) -> None:
        """Create an index by a PUT; do nothing if the index exists."""
        reply = self.send("PUT", target, orjson.dumps(body))
        if not reply.ok and reply.error[0] != EXISTS:
            raise refusal(reply, f"PUT {target}")

    def check(self) -> None:
        """Check the credentials, the product and its version.

        The request needs no privilege. A cluster without security answers that the path is unknown, which is accepted.
        """
        this = self.dialect
        reply = self.send("GET", this.who, accept=this.accept)
        kind, reason = reply.error
        for other in DIALECTS:
            if other is not this and other.identifies(reply.headers):
                raise PermanentError(
                    f"this is {reply.headers[other.header]}, and the sink has TYPE={this.type}.",
                    f"Set TYPE={other.type} of the sink.",
                )
        if reply.status == TOO_MANY or reply.status >= SERVER_ERROR or reply.status in {UNAUTHORISED, FORBIDDEN}:
            raise refusal(reply, f"GET {this.who}")
        if not reply.genuine:
            found = (
                f"the answer (HTTP {reply.status}) does not come from {this.product} {this.oldest} or later: {reason!r}"
            )
            if OLDER.match(reply.body):
                raise PermanentError(f"{found}.", "Set HOSTS to its HTTP port.")
            raise RetryableError("unavailable", f"{found}; if this error persists, set HOSTS to its HTTP port")
        if this.outdated(reply.headers):
            raise PermanentError(f"this is {reply.headers[this.header]}, older than {this.oldest}.", "Upgrade it.")
        if kind == "media_type_header_exception":
            raise PermanentError(f"this {this.product} is older than {this.oldest}: {reason}.", "Upgrade it.")


_clusters: dict[DocumentSettings, Cluster] = {}


def cluster_of(settings: DocumentSettings) -> Cluster:
    """Return the process's client of these settings. It outlives the runs of a route, and keeps the list of dead hosts."""
    known = _clusters.get(settings)
    return known or _clusters.setdefault(settings, Cluster(settings))


def refusal(reply: Reply, request: str) -> SinkError:
    """Return the error for an answer that is not 2xx. A 413 of a bulk request is handled before: the sink sends less."""
    kind, reason = reply.error
    product = reply.dialect.product
    said = f"{request}: HTTP {reply.status} {reason or kind}".rstrip()
    blocked = kind in BLOCKS and reply.status in {FORBIDDEN, TOO_MANY}
    if blocked or kind == "index_closed_exception":
        return RetryableError("read_only", said)
    unread = reply.status == UNAUTHORISED and KEY_UNREAD in reply.body
    if reply.status == UNAUTHORISED and not unread:
        return PermanentError(
            f"{product} refused the credentials ({said}).",
            f"Set API_KEY, or USERNAME and PASSWORD, of the sink, then {RECONFIGURE}",
        )
    if reply.status == FORBIDDEN:
        return PermanentError(f"not allowed ({said}).", f"Grant the user {reply.dialect.privileges}.")
    if NO_VECTORS.search(reason):
        return PermanentError(
            f"{product} can't keep vectors: {reason}.",
            "Install the plugin k-NN (opensearch-knn) on every node, or take VECTORS out of the route.",
        )
    if unread:
        said = f"{said}: it can't read the API key; if this error persists, set API_KEY, or restore its index .security"
    passing = reply.status >= SERVER_ERROR or (reply.status == NOT_FOUND and kind != "index_not_found_exception")
    if reply.status == TOO_MANY or passing or unread or not reply.genuine:
        reason = "overloaded" if reply.status == TOO_MANY else "unavailable"
        return RetryableError(reason, said, retry_after=reply.retry_after)
    return PermanentError(f"{product} refused {said}.", f"See the reason, and the log of {product}.")


def _authorization(settings: DocumentSettings) -> dict[str, str]:
    if settings.api_key is not None:
        return {"authorization": f"ApiKey {settings.api_key.get_secret_value()}"}
    if settings.username is not None and settings.password is not None:
        pair = f"{settings.username}:{settings.password.get_secret_value()}"
        return {"authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    return {}
