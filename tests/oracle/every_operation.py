"""A history with every kind of operation there is, a part of it for partitioned tables, and the shapes of table they are lived on."""

from __future__ import annotations

from tests.oracle.history import COMPARE, RARE, REWRITES, WRITES, Act, Shape

FILLED_EVERY = 5
"""Acts after which rows are appended, so that those that follow find keys to change and absent keys to insert."""
WRITING = tuple(
    step
    for number, kind in enumerate(WRITES)
    for step in ([Act("append", number, 0)] if number % FILLED_EVERY == 0 else []) + [Act(kind, number, number + 1)]
)
EMPTYING = ("delete_all", "truncate")
EMPTIED_AND_FILLED = (*(Act(kind) for kind in EMPTYING), Act("append", 1, 1), Act("append", 2, 2))
RESHAPING = ("widen_type", "map_columns", "add_nested_column", "append_with_new_column")
KEEPING = tuple(Act(kind, 3, 1) for kind in RARE if kind not in (*EMPTYING, *RESHAPING, "vacuum"))
RESHAPED = (Act("vacuum"), *(Act(kind, 3, 1) for kind in RESHAPING))
"""New columns and types come after VACUUM, since a replay delivers the rows of older shapes again, but no version before VACUUM."""
FAULTS = (
    Act("insert", 2, 0),
    Act("lose_commit", 0, 1),
    Act("replay", 1, 2),
    Act("update", 1, 0),
    Act("lose_writes", 2, 1),
)
"""Faults that deliver the same history again, so that they come before VACUUM."""
LATER_FAULTS = (
    Act("add_nested_column", 1),
    Act("merge", 2, 1),
    Act("lose_checkpoint", 0, 1),
    Act("recreate_dimension", 3, 1),
    Act("two_commands", 1),
    Act("recreate_table", 1, 0),
    Act("resync"),
    Act("merge", 3, 1),
)
EVERY_OPERATION = (
    Act("deliver"),
    *WRITING,
    Act(COMPARE),
    *FAULTS,
    *EMPTIED_AND_FILLED,
    *KEEPING,
    *RESHAPED,
    *LATER_FAULTS,
)
"""The sinks are compared after the writes, before VACUUM, before the table is recreated, and at the end."""
PARTITION_WRITES = ("append", "move_partition", "delete_partition", "merge", *REWRITES, "optimize")
"""Writes whose files or keys depend on partitions."""
_PARTITION_ACTS = [act for act in (*WRITING, *KEEPING) if act.kind in PARTITION_WRITES]
_MERGED = [act.kind for act in _PARTITION_ACTS].index("merge") + 1
EVERY_PARTITION_WRITE = (*_PARTITION_ACTS[:_MERGED], Act(COMPARE), *_PARTITION_ACTS[_MERGED:])
"""The sinks are compared before the table is overwritten as a whole, and at the end."""
SHAPES = {
    "partitioned": Shape(layout="region", generated=True, keys=("region", "id"), max_files=12, further="features"),
    "every feature": Shape(
        deletion_vectors=True,
        column_mapping=True,
        type_widening=True,
        in_commit_timestamps=True,
        row_tracking=True,
        from_version=0,
        max_files=40,
        further="replica",
    ),
}
