"""Random lives of a Delta table, as data: drawn by hypothesis, the same for the same seed, and pasted into a test when
one of them finds a difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

Layout = Literal["plain", "region", "bucket", "clustered"]
Further = Literal["none", "replica", "features"]

REWRITES = (
    "overwrite",
    "insert_overwrite",
    "replace_where_partition",
    "replace_where_data",
    "dynamic_overwrite",
    "restore",
)
WRITES = (
    "append",
    "append_twins",
    "insert",
    "update",
    "update_to_same",
    "swap_keys",
    "rotate_keys",
    "move_partition",
    "delete_rows",
    "delete_partition",
    "merge",
    "merge_same_key",
    "merge_inserts",
    "merge_nothing",
    *REWRITES,
)
RARE = (
    "delete_all",
    "truncate",
    "optimize",
    "zorder",
    "purge",
    "vacuum",
    "toggle_deletion_vectors",
    "add_column",
    "add_nested_column",
    "append_with_new_column",
    "widen_type",
    "map_columns",
    "set_property",
    "add_constraint",
    "in_commit_timestamps",
)
SERVICE = (
    "deliver",
    "lose_commit",
    "lose_checkpoint",
    "lose_writes",
    "replay",
    "resync",
    "two_commands",
    "recreate_table",
    "recreate_dimension",
)
COMPARE = "compare"
"""An act that random histories do not draw: the service delivers, and the sinks are compared in the middle of a history."""
GROWTH = ("add_nested_column", "widen_type")
"""Drawn as often as what writes rows: rows of older shapes have to be delivered again."""
EVENTS = ("append", "append_twins", "append_twins", "insert", "delete_rows", "add_nested_column", "widen_type")
"""Operations on a table of events without a key."""
LENGTH = 16


@dataclass(frozen=True)
class Act:
    """One operation on the table, or on the service. ``a``, ``b``: what it picks rows, keys, versions and moments by."""

    kind: str
    a: int = 0
    b: int = 0


@dataclass(frozen=True)
class Shape:
    """The form of the table at its creation, and the configuration of its routes.

    ``odd_region``: one of the regions, and so perhaps of the partitions, has characters that paths and keys escape.
    ``feed_late``: so many acts pass before the change feed is switched on. ``from_version``: start there, without a
    snapshot; None bootstraps. ``keys``: key columns of the routes. ``further``: a Delta sink that follows too, beside the
    audit table, Elasticsearch and Redis. ``twins``: rows have no key, and the audit table alone follows.
    """

    layout: Layout = "plain"
    deletion_vectors: bool = False
    column_mapping: bool = False
    type_widening: bool = False
    in_commit_timestamps: bool = False
    row_tracking: bool = False
    generated: bool = False
    odd_region: bool = False
    feed_late: int = 0
    from_version: int | None = None
    keys: tuple[str, ...] = ("id",)
    max_files: int = 1
    further: Further = "none"
    twins: bool = False


@dataclass(frozen=True)
class History:
    shape: Shape
    acts: tuple[Act, ...]


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    twins = draw(st.sampled_from((False, False, True)))
    generated = draw(st.booleans()) and not twins  # generated numbers would make twins distinguishable
    layout = draw(st.sampled_from(("plain", "region", "bucket", "clustered")))
    feed_late = draw(st.sampled_from((0, 0, 0, 3)))
    return Shape(
        layout="region" if layout == "bucket" and not generated else layout,
        deletion_vectors=draw(st.booleans()),
        column_mapping=draw(st.sampled_from((False, False, True))),
        type_widening=draw(st.sampled_from((False, False, False, True))),
        in_commit_timestamps=draw(st.booleans()),
        row_tracking=draw(st.booleans()),
        generated=generated,
        odd_region=draw(st.booleans()),
        feed_late=feed_late,
        from_version=None if feed_late else draw(st.sampled_from((None, None, 0))),
        keys=draw(st.sampled_from((("id",), ("id",), ("region", "id")))),
        max_files=draw(st.sampled_from((1, 1, 2, 3))),
        further="none" if twins else draw(st.sampled_from(("none", "replica", "features"))),
        twins=twins,
    )


def acts(shape: Shape) -> st.SearchStrategy[Act]:
    """Each act of the service is as likely as an INSERT."""
    rows = EVENTS if shape.twins else WRITES
    kinds = st.sampled_from((*rows, *rows, *(() if shape.twins else (*RARE, *GROWTH)), *SERVICE, *SERVICE))
    numbers = st.integers(0, 23)
    return st.builds(Act, kinds, numbers, numbers)


@st.composite
def histories(draw: st.DrawFn, length: int = LENGTH) -> History:
    shape = draw(shapes())
    return History(shape, tuple(draw(st.lists(acts(shape), min_size=length, max_size=length))))


def history_of(seed: int, length: int = LENGTH) -> History:
    """The history of a seed. Hypothesis begins with the simplest one, so the last it draws is taken."""
    drawn: list[History] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=4, database=None, phases=[Phase.generate], deadline=None, suppress_health_check=list(HealthCheck)
    )
    @hypothesis.given(histories(length))
    def draw(history: History) -> None:
        drawn.append(history)

    draw()
    return drawn[-1]
