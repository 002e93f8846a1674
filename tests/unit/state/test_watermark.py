"""The watermark of the state path is the lower bound of the watermark of a target."""

from pathlib import Path

import pytest

from cdf_replicator.state import watermark
from cdf_replicator.state.route_state import RouteState
from cdf_replicator.state.store import StateStore
from connectors import Watermark


@pytest.mark.parametrize("mark", [Watermark(0, 0, -1), Watermark(3, 17, 40), Watermark(-1, 0, 7), Watermark(-1, 0, -1)])
def test_a_watermark_is_read_as_it_was_written(mark):
    assert Watermark.parse(str(mark)) == mark


@pytest.mark.parametrize(
    ("held", "known", "reaches"),
    [
        (Watermark(0, 2, 5), Watermark(0, 2, 5), True),
        (Watermark(0, 1, 5), Watermark(0, 2, 5), False),  # a commit that takes several micro-batches
        (Watermark(1, 0, 3), Watermark(0, 9, 5), True),  # a replay from an earlier version
        (Watermark(0, 9, 5), Watermark(1, 0, 3), False),
        (Watermark(-1, 0, 5), Watermark(4, 9, 5), True),  # of the code before
        (Watermark(-1, 0, 4), Watermark(4, 9, 5), False),
    ],
)
def test_restored_target_is_behind_the_known_watermark(held, known, reaches):
    assert held.reaches(known) is reaches


def committed(state_path: StateStore, state: RouteState, batch: int, version: int) -> None:
    folder = Path(str(state_path.checkpoint(state.route, state.generation)))
    offset = f'{{"reservoirId":"t","reservoirVersion":{version},"index":-1}}'
    for kind, text in (("offsets", f"v1\n{{}}\n{offset}"), ("commits", "v1\n{}")):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        (folder / kind / str(batch)).write_text(text)


def test_known_watermark_grows_from_the_load_to_the_newest_micro_batch(tmp_path):
    state_path = StateStore.open(tmp_path)
    loading = RouteState("r", {}, "t", generation=2, pinned_version=4)
    assert watermark.known(loading, state_path) is None
    loaded = RouteState("r", {}, "t", generation=2, pinned_version=4, snapshot_loaded=True)
    assert watermark.known(loaded, state_path) == Watermark(2, 0, 4)
    streamed = RouteState("r", {}, "t", generation=2, phase="streaming", start_version=5, query_started=True)
    assert watermark.known(streamed, state_path) == Watermark(2, 0, 4)
    committed(state_path, streamed, 3, 7)
    assert watermark.known(streamed, state_path) == Watermark(2, 4, 6)
    replayed = streamed.next_generation(1, replay_end_version=-1, watermark=watermark.known(streamed, state_path))
    assert watermark.known(replayed, state_path) == Watermark(2, 4, 6), "until its stream begins"


def test_time_of_a_watermark_is_that_of_its_last_micro_batch(tmp_path):
    state_path, state = StateStore.open(tmp_path), RouteState("r", {}, "t", generation=2)
    offsets = Path(str(state_path.checkpoint("r", 1))) / "offsets"
    offsets.mkdir(parents=True)
    end = '{"reservoirId":"t","reservoirVersion":7,"index":-1}'
    (offsets / "3").write_text(f'v1\n{{"batchTimestampMs":1700000000500}}\n{end}')
    assert watermark.planned_at(state, Watermark(1, 4, 6), state_path) == 1_700_000_000.5
    for unknown in (Watermark(1, 5, 6), Watermark(1, 0, 6), Watermark(2, 4, 6), Watermark(-1, 0, 6)):
        assert watermark.planned_at(state, unknown, state_path) == 0


def test_replay_begins_after_the_watermark_or_at_an_earlier_running_replay():
    state = RouteState("r", {}, "t", generation=2, phase="streaming", start_version=5, query_started=True)
    assert watermark.replay_from(state, Watermark(2, 3, 8)) == 9
    assert watermark.replay_from(state, Watermark(1, 30, 8)) == 5
    assert watermark.replay_from(state, Watermark(0, 30, 8)) == 5
    assert watermark.replay_from(state, Watermark(1, 30, 2)) == 3
    assert watermark.replay_from(state, Watermark(-1, 0, 8)) == 9


def test_replay_begins_again_in_a_restored_delta_table_that_lacks_its_rows():
    state = RouteState(
        "r", {}, "t", generation=2, phase="streaming", start_version=5, query_started=True, held_version=8
    )
    assert watermark.replay_from(state, Watermark(-1, 0, 8)) == 5
    assert watermark.replay_from(state, Watermark(-1, 0, 9)) == 10, "the replay had passed that version"


def test_watermark_of_an_old_form_is_compared_by_version_only():
    assert Watermark(4, 9, 5).reaches(Watermark(-1, 0, 5))
    assert not Watermark(4, 9, 4).reaches(Watermark(-1, 0, 5))
    assert Watermark(0, 2, 5).reaches(Watermark(-1, 0, 5))
    assert not Watermark(0, 9, 4).reaches(Watermark(-1, 0, 5))


def test_watermark_of_a_new_stream_is_the_version_before_its_first(tmp_path):
    state = RouteState("r", {}, "t", generation=2, phase="streaming", start_version=0, query_started=True)
    assert watermark.known(state, StateStore.open(tmp_path)) == Watermark(2, 0, -1)


def test_lost_replay_from_version_0_is_delivered_again_from_version_0():
    state = RouteState("r", {}, "t", generation=2, phase="streaming", start_version=0, query_started=True)
    assert watermark.replay_from(state, Watermark(1, 30, 8)) == 0
    assert watermark.replay_from(state, Watermark(2, 3, 8)) == 9
