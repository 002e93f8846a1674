"""Send bulk requests, and classify each item of their answers."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from connectors.elasticsearch.index import FAULTS_OF_INDEX, WRITER
from connectors.errors import PermanentError, RetryableError
from connectors.result import Rejected, WriteResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from connectors.elasticsearch.client import Cluster, Reply

# A position is an index of ``items``. Every item keeps its ``status``, so that the filter removes no item.
ANSWER: Final = "filter_path=errors,items.*.status,items.*.error.type,items.*.error.reason,items.*.error.caused_by"

NO_ERRORS: Final = b'"errors":false'
APPLIED: Final = b'"status":20'  # 200 or 201

INVALID: Final = "invalid"
TOO_LARGE: Final = "too_large"
# The codes are labels of a metric, and therefore few. Every other refusal of a row is ``invalid``.
CODES: Final = {
    "document_parsing_exception": "document_parsing",
    "mapper_parsing_exception": "document_parsing",
    "strict_dynamic_mapping_exception": "strict_dynamic_mapping",
    "illegal_argument_exception": "illegal_argument",
}
KNN_BREAKER: Final = re.compile("knn vector fields .*circuit breaker triggered")
REJECTION_CODES: Final = (*sorted({*CODES.values()}), INVALID, TOO_LARGE)
# An empty document that the server checks but never stores, since no document has that sequence number.
PROBE_ID: Final = "cdf-replicator-probe"
PROBE: Final = b'{"index":{"_id":"%s","if_seq_no":9007199254740991,"if_primary_term":1}}\n{}\n' % PROBE_ID.encode()
NO_ERROR: Final = {"type": ""}
OF_ONE_DOCUMENT: Final = re.compile(r"\[-?\d+:-?\d+\]|document with id '.*?'(?=\.|$)", re.DOTALL)
DELETE, INDEX = b'{"delete":', b'\n{"index":'
"""Starts of the lines of actions. Only an upsert can have another line that starts like these: its document."""
WORST_FIRST: Final = ("read_only", "unavailable", "overloaded")

BAD_REQUEST, FORBIDDEN, NOT_FOUND, CONFLICT, CONTENT_TOO_LARGE, TOO_MANY = 400, 403, 404, 409, 413, 429


@dataclass(frozen=True, slots=True)
class BulkRequests:
    """Sends the bulk requests of a route to an index or alias, whose name is quoted for a URL."""

    cluster: Cluster
    target: str
    route: str

    def send(self, body: bytes, changes: int) -> WriteResult | None:
        """Send one request and classify its answer; return None if the request is larger than the server accepts."""
        guarded = self._may_create(body)
        reply = self._put(body + PROBE if guarded else body)
        if reply.status == CONTENT_TOO_LARGE:
            return None
        if reply.genuine and reply.ok and all_applied(reply.body, changes):
            return WriteResult(sent_bytes=len(body))
        items = _items(reply)
        if guarded and items:
            del items[-1]
        result = result_of(items, changes=changes, route=self.route, sent_bytes=len(body))
        if refused := refused_alike(items):
            self._check_rows_are_to_blame(refused)
        return result

    def _check_rows_are_to_blame(self, refused: set[tuple[str, str]]) -> None:
        """Send an empty document after the index refused every row; raise ``PermanentError`` if it is refused like them.

        Without this check a fault of the index would turn all rows into dead letters, and delete the documents of their keys.
        """
        (item,) = _items(self._put(PROBE))
        error = item["index"].get("error", NO_ERROR)
        if _is_refused_like(error, refused):
            raise PermanentError(
                f"the index refuses every document, even an empty document: {error['type']}: {error.get('reason')}.",
                "Correct the settings, the template or the pipelines of the index. No document was deleted. "
                "Then run: cdf-replicator resume {route}",
            )

    def _may_create(self, body: bytes) -> bool:
        """Return whether the request would create an index if the target were gone: deletes alone, through the alias of a user.

        ``require_alias`` does not apply to a delete with an external version, unless the request also has an upsert.
        """
        return not self.target.startswith(WRITER) and body.startswith(DELETE) and INDEX not in body

    def _put(self, body: bytes) -> Reply:
        from connectors.elasticsearch.client import NDJSON

        return self.cluster.send("PUT", f"/{self.target}/_bulk?require_alias=true&{ANSWER}", body, NDJSON)


def _items(reply: Reply) -> list[dict[str, dict[str, Any]]]:
    from connectors.elasticsearch.client import refusal

    if not reply.ok:
        raise refusal(reply, "bulk")
    items: list[dict[str, dict[str, Any]]] = reply.json()["items"]
    return items


def all_applied(answer: bytes, changes: int) -> bool:
    """Return whether the answer reports every change as applied, without parsing it: parsing takes as long as the request.

    An answer without errors contains statuses only. A quoted text can't contain these bytes, since its quotes are escaped.
    """
    return NO_ERRORS in answer and answer.count(APPLIED) == changes


def result_of(
    items: Sequence[dict[str, dict[str, Any]]], *, changes: int, route: str, sent_bytes: int = 0
) -> WriteResult:
    """Classify every item of an answer.

    Raises:
        RetryableError: No change was applied, and a retry may apply all of them.
        PermanentError: The target is gone or refuses every write.

    """
    if len(items) != changes:
        raise RetryableError("unavailable", f"{changes} changes sent, {len(items)} answered")
    noop: list[int] = []
    stale: list[int] = []
    rejected: list[Rejected] = []
    retry: dict[int, RetryableError] = {}
    for position, item in enumerate(items):
        (answer,) = item.values()
        status, error = answer["status"], answer.get("error")
        if error is None:
            if status == NOT_FOUND:
                noop.append(position)
        elif status == CONFLICT:
            stale.append(position)
        else:
            failure = _classify(position, status, error, route)
            if isinstance(failure, Rejected):
                rejected.append(failure)
            else:
                retry[position] = failure
    result = WriteResult(stale=stale, noop=noop, rejected=rejected, sent_bytes=sent_bytes)
    if not retry:
        return result
    worst = min(retry.values(), key=lambda error: WORST_FIRST.index(error.reason))
    if len(retry) == changes:
        raise worst
    return replace(result, retry=list(retry), retry_reason=worst.reason)


def _classify(position: int, status: int, error: dict[str, Any], route: str) -> Rejected | RetryableError:
    kind, reason = error["type"], error.get("reason") or ""
    if kind in {"index_not_found_exception", "invalid_index_name_exception"}:  # for an upsert, for a delete
        raise PermanentError(
            f"the index is gone, or another instance has taken over: {reason}.",
            "If another instance has taken over, this instance ends by itself. If the index was deleted, run "
            f"`cdf-replicator resync {route}`: a running route does not create it again, since it would lack rows.",
        )
    if kind == "illegal_argument_exception" and reason.startswith("no write index"):
        raise PermanentError(f"{reason}.", "Mark one of its indices with is_write_index: true.")
    if kind == "security_exception":
        raise PermanentError(f"not allowed: {reason}.", "Grant the user write on the index.")
    if kind == "index_closed_exception" or (kind == "cluster_block_exception" and status in {FORBIDDEN, TOO_MANY}):
        return RetryableError("read_only", reason or kind)
    if status == TOO_MANY or _lacks_memory(error.get("caused_by")):
        return RetryableError("overloaded", reason)
    if _is_refusal(status, kind):
        _check_row_is_to_blame(f"{kind}: {reason}")
        return Rejected(position, CODES.get(kind, INVALID), f"{kind}: {reason}")
    return RetryableError("unavailable", f"{status} {kind}: {reason}")


def _is_refusal(status: int, kind: str) -> bool:
    """Return whether the content of a document is refused. The status of an ingest pipeline's ``fail`` is 500."""
    return status == BAD_REQUEST or kind == "fail_processor_exception"


def _lacks_memory(cause: dict[str, Any] | None) -> bool:
    """Return whether a circuit breaker caused a refusal: OpenSearch's k-NN reports its own as an error of the document."""
    while cause:
        kind, reason = cause.get("type"), cause.get("reason") or ""
        if kind == "circuit_breaking_exception" or (kind == "illegal_state_exception" and KNN_BREAKER.search(reason)):
            return True
        cause = cause.get("caused_by")
    return False


def _check_row_is_to_blame(said: str) -> None:
    """Raise ``PermanentError`` if the reason of a refusal is a fault of the index."""
    for pattern, hint in FAULTS_OF_INDEX:
        if pattern.search(said):
            raise PermanentError(f"the index can't take any row: {said}.", hint)


def refused_alike(items: Iterable[dict[str, dict[str, Any]]]) -> set[tuple[str, str]]:
    """Return type and reason of every refusal if all upserts of an answer were refused with one error type; otherwise none."""
    refused = {
        _kind_and_reason(error if _is_refusal(item["index"]["status"], error["type"]) else NO_ERROR)
        for item in items
        if "index" in item
        for error in [item["index"].get("error", NO_ERROR)]
    }
    return refused - {("", "")} if len({kind for kind, _ in refused}) == 1 else set()


def _is_refused_like(error: dict[str, Any], refused: set[tuple[str, str]]) -> bool:
    """Return whether an error has the type of the refusals, and either they have several reasons or it has their reason.

    A single row may be refused for a value that the empty document lacks, by the same processor of a pipeline.
    """
    kind, reason = _kind_and_reason(error)
    alike = re.compile(".*".join(map(re.escape, reason.split(PROBE_ID))), re.DOTALL)
    reasons = {of_row for kind_of_row, of_row in refused if kind_of_row == kind}
    return len(reasons) > 1 or any(alike.fullmatch(of_row) for of_row in reasons)


def _kind_and_reason(error: dict[str, Any]) -> tuple[str, str]:
    """Return type and reason of an error, without what names the document and the place in it."""
    return error["type"], OF_ONE_DOCUMENT.sub("", error.get("reason") or "")


def too_large(position: int) -> WriteResult:
    return WriteResult(rejected=[Rejected(position, TOO_LARGE, "413: larger than a request may be")])


def merge(first: WriteResult, second: WriteResult, offset: int) -> WriteResult:
    """Join the results of two adjacent parts of a chunk. The second part begins at position ``offset``."""
    reasons = {part.retry_reason for part in (first, second) if part.retry}
    return WriteResult(
        stale=[*first.stale, *(position + offset for position in second.stale)],
        noop=[*first.noop, *(position + offset for position in second.noop)],
        rejected=[*first.rejected, *(replace(row, position=row.position + offset) for row in second.rejected)],
        retry=[*first.retry, *(position + offset for position in second.retry)],
        retry_reason=min(reasons, key=WORST_FIRST.index, default=first.retry_reason),
        sent_bytes=first.sent_bytes + second.sent_bytes,
    )
