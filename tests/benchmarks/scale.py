"""How much of everything: in full, and as little as shows that the suite works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Memory:
    """``rows``: of the commit to compare with."""

    rows: int
    large_commit: int
    backlog_commits: int
    backlog_rows: int
    huge_row_bytes: int


@dataclass(frozen=True)
class Scale:
    """Size of the benchmarks.

    Attributes:
        wide: Rows of the work with many columns, 0 for none.
        fat: Rows of the work with long rows, 0 for none.
        warm_up: True if an untimed run comes first.
        idle, many: Number of tables, routes per table, seconds of warm-up, seconds of measurement.
        growth: Sizes of the tables, ascending.
    """

    rows: int
    wide: int
    fat: int
    flights: bool
    rounds: int
    warm_up: bool
    commits: int
    small_commits: int
    warm_up_commits: int
    idle: tuple[int, int, float, float]
    many: tuple[int, int, float, float]
    growth: tuple[int, ...]
    growth_sinks: tuple[str, ...]
    large_commits: tuple[int, ...]
    memory: Memory
    starts: int
    command_starts: int


FULL = Scale(
    rows=1_000_000,
    wide=100_000,
    fat=30_000,
    flights=True,
    rounds=3,
    warm_up=True,
    commits=300,
    small_commits=60,
    warm_up_commits=120,
    idle=(10, 5, 90, 60),
    many=(100, 5, 90, 60),
    growth=(100_000, 1_000_000, 3_000_000),
    growth_sinks=("redis", "audit"),
    large_commits=(2_000_000,),
    memory=Memory(1_000_000, 5_000_000, 100, 50_000, 20_000_000),
    starts=4,
    command_starts=20,
)
SMOKE = Scale(
    rows=2000,
    wide=0,
    fat=0,
    flights=False,
    rounds=1,
    warm_up=False,
    commits=3,
    small_commits=3,
    warm_up_commits=1,
    idle=(1, 2, 0, 2),
    many=(2, 1, 0, 2),
    growth=(),
    growth_sinks=("redis",),
    large_commits=(),
    memory=Memory(1000, 2000, 2, 1000, 100_000),
    starts=1,
    command_starts=1,
)
