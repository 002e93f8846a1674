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
class Sizes:
    """``rows`` and ``files``: of one table each, ascending. ``commits``: of one table, each of one file."""

    rows: tuple[int, ...]
    rows_a_file: int
    files: tuple[int, ...]
    commits: int
    settle_seconds: float
    idle_seconds: float


@dataclass(frozen=True)
class Cluster:
    """``executors``: of one core each, ascending. ``files`` of ``rows_a_file`` rows: the table that they deliver.

    ``works``: files and rows a file of the tables whose processor time is measured, by ``cpu_executors``.
    """

    executors: tuple[int, ...]
    files: int
    rows_a_file: int
    loads: int
    cpu_executors: int
    works: tuple[tuple[int, int], ...]


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
    sizes: Sizes
    cluster: Cluster
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
    idle=(10, 5, 300, 60),
    many=(100, 5, 90, 60),
    growth=(100_000, 1_000_000, 3_000_000),
    growth_sinks=("redis", "audit"),
    large_commits=(2_000_000,),
    memory=Memory(1_000_000, 5_000_000, 100, 50_000, 20_000_000),
    sizes=Sizes((1_000_000, 10_000_000, 100_000_000), 50_000, (1_000, 10_000, 100_000), 10_000, 60, 60),
    cluster=Cluster((1, 2, 4, 8), 32, 2_000, 2, 2, ((8, 31_250), (8, 125_000), (64, 15_625), (512, 1_953))),
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
    sizes=Sizes((2_000,), 1_000, (10,), 10, 0, 2),
    cluster=Cluster((1,), 2, 500, 1, 1, ((1, 1_000),)),
    starts=1,
    command_starts=1,
)
