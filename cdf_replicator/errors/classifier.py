"""Classify an error by its class or by the table of ``conditions``."""

from __future__ import annotations

import re
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cdf_replicator.errors.condition_table import ERROR_CONDITIONS
from cdf_replicator.errors.conditions import RESYNC, UNKNOWN_SPARK_ERROR
from cdf_replicator.errors.exceptions import (
    EnrichmentError,
    ErrorDecision,
    LeaseLostError,
    QueryStalledError,
    RouteHaltError,
    SchemaChangedError,
    StateError,
)
from connectors import PermanentError, RetryableError

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNKNOWN_NEXT_STEP: Final = "The route retries a few times. If the error persists, see the log for its full text."
_SINK_NEXT_STEP: Final = "No action needed: the route retries until the sink responds."
_STORAGE_NEXT_STEP: Final = (
    "The storage of CDF_STATE_PATH or of the source table fails: remove the cause that the error names. The route then "
    "continues without a command."
)
_BUG_NEXT_STEP: Final = "This is a bug in the sink or the service. No change is lost. Please report it with the log."


def classify_error(error: BaseException, *, route: str) -> ErrorDecision:
    """Return the decision on an error that ended a route's query or prevented its start."""
    decision = _own(error)
    if decision is not None:
        return _for_route(decision, route)
    text = _text(error)
    if raised := _RAISED_BY_SINK.search(text):  # in a worker that reads a target
        return ErrorDecision("wait", "sink", raised[1][:500], _SINK_NEXT_STEP, from_sink=True)
    for row in ERROR_CONDITIONS:
        if row.matches(text):
            decision = ErrorDecision(row.action, row.reason, _line(text), row.next_step, max_failures=row.tries)
            return _for_route(decision, route)
    if type(error).__module__.startswith(("pyspark", "py4j")):
        return ErrorDecision("retry_then_halt", UNKNOWN_SPARK_ERROR, _line(text), _UNKNOWN_NEXT_STEP)
    if isinstance(error, OSError) and _is_of_storage(error):
        return ErrorDecision("wait", "storage", _line(text), _STORAGE_NEXT_STEP)
    return ErrorDecision("halt", "bug", f"{type(error).__name__}: {_line(text)}", _BUG_NEXT_STEP)


def clear_traceback_frames(error: BaseException | None) -> None:
    """Clear the traceback frames of an error and of its context.

    PySpark keeps the error of a micro-batch as long as the JVM keeps the query, and the frames hold the query. Without this
    call neither is freed: each outage of a sink leaks about 1 MB.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def _own(error: BaseException) -> ErrorDecision | None:
    """Return the decision on an error of the service or of a sink; None for any other error."""
    if isinstance(error, RouteHaltError | QueryStalledError | SchemaChangedError | EnrichmentError):
        return error.decision
    if isinstance(error, StateError):
        return ErrorDecision("halt", "state_damaged", str(error), RESYNC)
    if isinstance(error, LeaseLostError):
        next_step = "No action needed: this instance stops, or continues if the other instance did not take over."
        return ErrorDecision("wait", "lease_lost", str(error), next_step)
    if isinstance(error, RetryableError):
        return ErrorDecision("wait", error.reason, str(error), _SINK_NEXT_STEP, from_sink=True)
    if isinstance(error, PermanentError):
        return ErrorDecision("halt", "sink_refused", error.reason, error.hint, from_sink=True)
    return None


def _is_of_storage(error: OSError) -> bool:
    """Return whether the service's own access to a state path or to a source table raised the error.

    The error of a sink's own file or socket is no such error: the sink has to classify it.
    """
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_globals.get("__name__", "").startswith(_STORAGE_PACKAGES) for frame, _ in frames)


def _for_route(decision: ErrorDecision, route: str) -> ErrorDecision:
    return replace(decision, remedy=decision.remedy.replace("{route}", route))


def _text(error: BaseException) -> str:
    """Return the text of an error. The text of the cause precedes an ``INTERNAL_ERROR``, since it is more specific."""
    text, beneath = str(error), getattr(error, "_cause", None)
    if beneath is None or _INTERNAL not in text:
        return text
    return f"{_INTERNAL} {_text(beneath)}\n{text}"


def _line(text: str) -> str:
    """Return the first line or sentence of the text, from the first condition that is not a wrapper on."""
    text = _CALLING.sub("", text)
    named = [m for m in re.finditer(r"\[[A-Z][A-Z0-9_]+(\.[A-Z0-9_]+)*\]", text) if m.group() not in _WRAPPERS]
    start = named[0].start() if named else 0
    lines = text[start:].strip().splitlines()
    return _sentence(lines)[:500] if lines else "no message"


def _sentence(lines: Sequence[str]) -> str:
    """Return the first line. Delta breaks some messages in the middle of a sentence: join the lines up to its full stop."""
    sentence = lines[0].rstrip()
    if not sentence.startswith("[DELTA_"):
        return sentence
    for line in lines[1:]:
        if sentence.endswith((".", ":")) or not line or line[0].isspace():  # a stack trace is indented
            break
        head, stop, _ = line.rstrip().partition(". ")
        sentence += f" {head}{stop.rstrip()}"
    return sentence


_STORAGE_PACKAGES: Final = ("cdf_replicator.state.", "cdf_replicator.source.", "cdf_replicator.spark.hadoop_path")
_INTERNAL: Final = "[INTERNAL_ERROR]"
_WRAPPERS: Final = ("[STREAM_FAILED]", "[FOREACH_BATCH_USER_FUNCTION_ERROR]")
_RAISED_BY_SINK: Final = re.compile(r"^connectors\.errors\.\w+Error: (.*)", re.MULTILINE)
_CALLING: Final = re.compile(r"^An error occurred while calling \S+\n: ")
