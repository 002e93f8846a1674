"""Classify an error by its class or by the table of ``conditions``."""

from __future__ import annotations

import re
import traceback
from dataclasses import replace
from typing import Final

from cdf_replicator.errors.conditions import RESYNC, TABLE, UNFORESEEN
from cdf_replicator.errors.exceptions import (
    DimensionError,
    HaltError,
    LeaseLostError,
    SchemaChangedError,
    StalledError,
    StateError,
    Verdict,
)
from connectors import PermanentError, RetryableError

_UNKNOWN_NEXT_STEP: Final = "The route retries a few times. If the error persists, see the log for its full text."
_BUG_NEXT_STEP: Final = "This is a bug in the sink or the service. No change is lost. Please report it with the log."


def judge(error: BaseException, *, route: str) -> Verdict:
    """Return the verdict on an error that ended a route's query or prevented its start."""
    verdict = _own(error)
    if verdict is not None:
        return _for_route(verdict, route)
    text = _text(error)
    for row in TABLE:
        if row.fits(text):
            verdict = Verdict(row.action, row.reason, _line(text), row.next_step, tries=row.tries)
            return _for_route(verdict, route)
    if type(error).__module__.startswith(("pyspark", "py4j")):
        return Verdict("retry_then_halt", UNFORESEEN, _line(text), _UNKNOWN_NEXT_STEP)
    return Verdict("halt", "bug", f"{type(error).__name__}: {_line(text)}", _BUG_NEXT_STEP)


def let_go(error: BaseException | None) -> None:
    """Clear the traceback frames of an error and of its context.

    PySpark keeps the error of a micro-batch as long as the JVM keeps the query, and the frames hold the query. Without this
    call neither is freed: each outage of a sink leaks about 1 MB.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def _own(error: BaseException) -> Verdict | None:
    """Return the verdict on an error of the service or of a sink; None for any other error."""
    if isinstance(error, HaltError | StalledError | SchemaChangedError | DimensionError):
        return error.verdict
    if isinstance(error, StateError):
        return Verdict("halt", "state_damaged", str(error), RESYNC)
    if isinstance(error, LeaseLostError):
        next_step = "No action needed: this instance stops, or continues if the other instance did not take over."
        return Verdict("wait", "lease_lost", str(error), next_step)
    if isinstance(error, RetryableError):
        next_step = "No action needed: the route retries until the sink responds."
        return Verdict("wait", error.reason, str(error), next_step, of_sink=True)
    if isinstance(error, PermanentError):
        return Verdict("halt", "sink_refused", error.reason, error.hint, of_sink=True)
    return None


def _for_route(verdict: Verdict, route: str) -> Verdict:
    return replace(verdict, next_step=verdict.next_step.replace("{route}", route))


def _text(error: BaseException) -> str:
    """Return the text of an error. The text of the cause precedes an ``INTERNAL_ERROR``, since it is more specific."""
    text, beneath = str(error), getattr(error, "_cause", None)
    if beneath is None or _INTERNAL not in text:
        return text
    return f"{_INTERNAL} {_text(beneath)}\n{text}"


def _line(text: str) -> str:
    """Return the first line of the text, from the first condition that is not a wrapper on."""
    text = _CALLING.sub("", text)
    named = [m for m in re.finditer(r"\[[A-Z][A-Z0-9_]+(\.[A-Z0-9_]+)*\]", text) if m.group() not in _WRAPPERS]
    start = named[0].start() if named else 0
    lines = text[start:].strip().splitlines()
    return lines[0][:500] if lines else "no message"


_INTERNAL: Final = "[INTERNAL_ERROR]"
_WRAPPERS: Final = ("[STREAM_FAILED]", "[FOREACH_BATCH_USER_FUNCTION_ERROR]")
_CALLING: Final = re.compile(r"^An error occurred while calling \S+\n: ")
