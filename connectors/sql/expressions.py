"""Find what makes an SQL expression depend on its evaluation, or on columns that it does not name.

Spark's parser replaces ``DATE 'today'`` by its present value and a star by columns. The analysed plan then shows neither.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMELY: Final = "a time such as 'now', 'today' or '12:00' changes every day"
_TIMELY_TEXTS: Final = ("now", "today", "tomorrow", "yesterday")
_TO_TIME: Final = ("Cast", "ParseTo", "GetTimestamp")
_TIME_OF_DAY: Final = re.compile(r"\s*(T\d|\d{1,2}:)")
"""Spark converts such a text to a timestamp of the present day."""
_TIMELY_LITERAL: Final = re.compile(
    r"\b(date|timestamp(_ltz|_ntz)?)(?:\s|/\*.*?\*/|--[^\n]*\n)*r?(['\"])"
    r"\s*((now|today|tomorrow|yesterday)\b|T\d|\d{1,2}:)[^'\"]*\3",
    re.IGNORECASE | re.DOTALL,
)


def is_time_dependent(text: str, *analysed: Any) -> bool:
    """Return whether a text such as 'today' becomes a time: ``DATE 'today'``, ``day > 'today'``, ``ts > '12:00'``.

    Args:
        text: The SQL text.
        analysed: The expressions of the JVM that Spark's analyzer made of it.

    """
    if _TIMELY_LITERAL.search(text):
        return True
    return any(_converts_to_time(node) for expression in analysed for node in _nodes(expression))


def has_random_iv(*analysed: Any) -> bool:
    """Return whether ``aes_encrypt`` draws an initialization vector, although Spark takes the function for deterministic.

    It draws a vector in every mode but ECB if the vector is absent or empty.
    """
    for node in (node for expression in analysed for node in _nodes(expression)):
        if node.getClass().getSimpleName() == "AesEncrypt":
            _, _, mode, _, iv, _ = items(node.children())
            is_ecb = (_constant_text(mode) or "").upper() == "ECB"
            if not is_ecb and iv.foldable() and iv.eval(None) == b"":
                return True
    return False


def has_star(text: str) -> bool:
    """Return whether ``*`` takes every column of a frame, such as in ``hash(*)``; ``column.*`` takes fields of a column.

    Only the parsed expression shows a star, because the analysed plan has the columns in its place. Spark's parser
    replaces the star of ``count(*)``, which reads no column.
    """
    from pyspark.sql import SparkSession

    parser: Any = SparkSession.builder.getOrCreate()._jsparkSession.sessionState().sqlParser()
    return any(
        node.getClass().getSimpleName().startswith("UnresolvedStar") and node.target().isEmpty()
        for node in _nodes(parser.parseExpression(text))
    )


def _nodes(expression: Any) -> Iterator[Any]:
    yield expression
    for child in items(expression.children()):
        yield from _nodes(child)


def items(sequence: Any) -> list[Any]:
    """Return the elements of a Scala sequence."""
    return [sequence.apply(position) for position in range(sequence.size())]


def _converts_to_time(node: Any) -> bool:
    name = node.getClass().getSimpleName()
    kind = str(node.dataType().typeName()) if name.startswith(_TO_TIME) else ""
    if not kind.startswith(("date", "timestamp")):
        return False
    texts = [text for child in items(node.children()) if (text := _constant_text(child)) is not None]
    if kind == "timestamp" and len(texts) == 1 and _TIME_OF_DAY.match(texts[0]):  # a second text is a format
        return True
    return any(text.split()[:1] and text.split()[0].lower() in _TIMELY_TEXTS for text in texts)


def _constant_text(node: Any) -> str | None:
    """Return the text of an expression that reads no column, as Spark's optimizer does; None for any other expression."""
    if not node.foldable() or not str(node.dataType().typeName()).startswith("string"):
        return None
    try:
        value = node.eval(None)
    except Exception:  # noqa: BLE001 - Spark reports it when it evaluates a row
        return None
    return None if value is None else str(value)
