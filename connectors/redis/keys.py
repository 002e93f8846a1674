"""Build the names of Redis keys: the keys of values, guards and claims.

    orders:4711                  value
    cdf:guard:{orders:4711}      guard: hashes to the value's slot, since the value's own key holds no braces
    cdf:claim:{orders:}          claim of the route whose keys begin with orders:
    cdf:claim:{12}orders:        in a cluster, the claim of the same route in the slot of 12; each slot has one

The key of a value contains the key columns, percent-encoded: ``%`` and ``:`` as in every key text, and braces.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from connectors.change import KEY
from connectors.errors import PermanentError

if TYPE_CHECKING:
    from pyspark.sql import Column

    from connectors.change import RouteSpec

GUARD_HEAD: Final = "cdf:guard:{"
GUARD_TAIL: Final = "}"
CLAIM_HEAD: Final = "cdf:claim:{"
BRACES: Final = "{}"
_GUARD_HEAD, _GUARD_TAIL, _CLAIM_HEAD = GUARD_HEAD.encode(), GUARD_TAIL.encode(), CLAIM_HEAD.encode()

_GLOB = str.maketrans({character: f"\\{character}" for character in "\\*?[]^"})

_COLUMN: Final = re.compile(r"\{([^{}]*)\}")

Piece = tuple[str, "str | None"]


@dataclass(frozen=True, slots=True)
class KeyNames:
    """The key names of a route. ``pieces`` are literal texts, each with the position of the key column that follows it."""

    pieces: tuple[tuple[str, int | None], ...]
    whole: bool

    @property
    def prefix(self) -> str:
        """Return the common prefix of the route's keys."""
        return self.pieces[0][0]

    @property
    def claim(self) -> str:
        return f"{CLAIM_HEAD}{self.prefix}}}"

    def slot_claim(self, tag: str) -> str:
        """Return the claim for the values in the slot of a tag."""
        return f"{CLAIM_HEAD}{tag}}}{self.prefix}"

    @property
    def guard_pattern(self) -> str:
        """Return the pattern for SCAN that matches the guards of the route."""
        return f"{GUARD_HEAD}{self.prefix.translate(_GLOB)}*"

    @property
    def value_pattern(self) -> str:
        """Return the pattern for SCAN that matches the values of the route, including those of other writers."""
        return "".join(
            literal.translate(_GLOB) + ("" if position is None else "*") for literal, position in self.pieces
        )

    @property
    def claim_pattern(self) -> str:
        """Return a pattern for SCAN that matches the claims of every prefix that begins with the route's prefix."""
        return f"{CLAIM_HEAD}*{self.prefix.translate(_GLOB)}*"

    def longer_prefixes(self, claims: list[bytes]) -> set[bytes]:
        """Return the prefixes of claims that are longer than the route's prefix and begin with it."""
        own, parts = self.prefix.encode(), (key[len(_CLAIM_HEAD) :].partition(b"}") for key in claims)
        prefixes = {of_cluster or of_server for of_server, _, of_cluster in parts}
        return {prefix for prefix in prefixes if prefix != own and prefix.startswith(own)}

    def former_values(self, guards: list[bytes]) -> list[bytes]:
        """Return the values of guards of the route that its keys do not match: those of a former template."""
        texts = (re.escape(literal) + ("" if at is None else ".*") for literal, at in self.pieces)
        own = re.compile("".join(texts).encode(), re.DOTALL)
        values = (key[len(_GUARD_HEAD) : -len(_GUARD_TAIL)] for key in guards if key.endswith(_GUARD_TAIL))
        return [value for value in values if own.fullmatch(value) is None]

    def value_column(self) -> Column:
        """Return the key of the value, from the key text of the change frame."""
        from pyspark.sql import functions as F  # noqa: N812 - as in connectors.rendering

        from connectors.rendering import escaped

        if self.whole:
            return F.concat(F.lit(self.prefix), escaped(F.col(KEY), BRACES))
        values = F.split(F.col(KEY), ":")
        columns = []
        for literal, position in self.pieces:
            columns.append(F.lit(literal))
            if position is not None:
                columns.append(escaped(values.getItem(position), BRACES))
        return F.concat(*columns)

    def key_column(self, value_key: str) -> Column:
        """Return the key text of a value's key in the column ``value_key``, as the inverse of ``value_column``."""
        from pyspark.sql import functions as F  # noqa: N812

        pattern = "".join(re.escape(literal) + ("" if at is None else "(.*)") for literal, at in self.pieces)
        groups = {at: group for group, at in enumerate((at for _, at in self.pieces if at is not None), start=1)}
        values = [F.regexp_extract(value_key, f"(?s)^{pattern}$", groups[at]) for at in sorted(groups)]
        text = F.concat_ws(":", *values)
        for brace in BRACES:
            text = F.replace(text, F.lit(f"%{ord(brace):02X}"), F.lit(brace))
        return text


def guard_of_value(value_key: bytes) -> bytes:
    """Return the key of the guard of a value."""
    return b"%b%b%b" % (_GUARD_HEAD, value_key, _GUARD_TAIL)


def as_bytes(reply: bytes | str) -> bytes:
    """Return a reply as bytes; with ``decode_responses=true`` in the URL redis-py returns text."""
    return reply.encode() if isinstance(reply, str) else reply


def is_internal(key: bytes) -> bool:
    """Return whether the key is a guard or a claim. The prefix of a route's values may match both."""
    return key.startswith((_GUARD_HEAD, _CLAIM_HEAD))


def key_names(route: RouteSpec, template: str | None) -> KeyNames:
    """Return the key names of a route; raise ``PermanentError`` if the template's columns are not the key columns."""
    if template is None:
        return KeyNames(((f"{route.table}:", 0),), whole=True)
    pieces = parse_template(template)
    named = [name for _, name in pieces if name is not None]
    if sorted(named) != sorted(route.keys):
        raise PermanentError(
            f"The key template {template!r} of route {route.name} does not name exactly the key columns {', '.join(route.keys)}.",
            "Name each of them once, in braces: two rows that share a Redis key would overwrite each other.",
        )
    return KeyNames(
        tuple((text, None if name is None else route.keys.index(name)) for text, name in pieces), whole=False
    )


def parse_template(template: str) -> list[Piece]:
    """Return the literal texts, each with the column after it; raise ``ValueError`` if two rows could share a key."""
    texts, names = _COLUMN.split(template)[::2], _COLUMN.findall(template)
    if any(brace in text for text in texts for brace in BRACES):
        raise ValueError("expected something like orders:{id}; braces are allowed around a column's name only")
    if "" in names:
        raise ValueError("expected column names in braces, like orders:{id}")
    pieces: list[Piece] = [*zip(texts, names, strict=False), *([(texts[-1], None)] if texts[-1] else [])]
    if not pieces or not pieces[0][0]:
        raise ValueError("expected text before the first column, like orders:{id}: it identifies the route's keys")
    if any(":" not in text for text, name in pieces[1:] if name is not None):
        raise ValueError("expected a colon between two columns, or two rows could share a key")
    return pieces
