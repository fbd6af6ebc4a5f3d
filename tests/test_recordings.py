"""The specification and the fast engine agree with every recording of the real scheduler, and would
not if one value were another.

Each run is pinned to its size: steps, messages and states. The second half falsifies one value of
a recording at a time, and expects the difference where it was put and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
from attrs import evolve

from servecheck.engines.whole import WHOLE, MakeWhole
from servecheck.recording import (
    BlockStored,
    PassLine,
    Recording,
    RecordingError,
    RunConfig,
    StateLine,
    StepLine,
    read_recording,
)
from servecheck.recording.replay import Difference, replay
from tests.broken_engines import FAULTS, Faulty, whole
from tests.recordings import prefix

T = TypeVar("T")

SIZES = {
    # name: (steps, messages, states)
    "conv": (154, 73, 0),
    "dup": (68, 22, 0),
    "dup_bytes_hashes": (68, 22, 0),
    "nochunk": (137, 47, 0),
    "preempt": (173, 98, 0),
    "prio": (97, 55, 0),
    "reset": (38, 17, 0),
    "spec_abort": (61, 51, 120),
    "spec_lookahead": (76, 56, 152),
    "spec_maxlen": (42, 17, 82),
    "spec_prio": (83, 67, 166),
    "spec_roomy": (43, 30, 86),
    "spec_tight": (100, 83, 200),
    "toy_abort": (152, 107, 304),
    "toy_edges": (102, 44, 204),
    "toy_fcfs": (160, 117, 320),
    "toy_giveback": (92, 75, 184),
    "toy_long": (59, 46, 118),
    "toy_maxlen": (45, 23, 90),
    "toy_maxseqs": (62, 44, 124),
    "toy_nocache": (141, 0, 282),
    "toy_nochunk": (44, 28, 88),
    "toy_noreserve": (72, 46, 144),
    "toy_prio": (173, 113, 346),
    "toy_reset": (49, 40, 98),
    "toy_watermark": (140, 79, 280),
}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("make", WHOLE.values(), ids=WHOLE)
def test_what_was_recorded_is_done(make: MakeWhole, name: str) -> None:
    """By the specification, and by the fast engine with no specification beside it."""
    report = replay(read_recording(prefix(name)), make=make)
    assert report.differences == ()
    assert report.agreed == report.steps
    assert (report.steps, report.messages, report.states) == SIZES[name]


@pytest.mark.parametrize("broken", FAULTS, ids=[fault.__name__ for fault in FAULTS])
def test_an_engine_that_does_otherwise_is_told(broken: type[Faulty]) -> None:
    """It is the engine that is held against the recording: each fault shows on one of these."""

    def differs(name: str) -> bool:
        report = replay(read_recording(prefix(name)), make=whole(broken))
        return report.agreed < report.steps and bool(report.differences)

    assert differs("spec_tight") or differs("toy_giveback")


# --- A replay can disagree --------------------------------------------------------------------


@pytest.fixture(scope="module")
def run() -> Recording:
    """Drafts, preemptions, and all kinds of lines."""
    return read_recording(prefix("spec_tight"))


def with_item(items: tuple[T, ...], at: int, change: Callable[[T], T]) -> tuple[T, ...]:
    return (*items[:at], change(items[at]), *items[at + 1 :])


def swapped(items: tuple[T, ...]) -> tuple[T, ...]:
    """The first two change places."""
    first, second, *rest = items
    assert first != second
    return second, first, *rest


def in_pass(run: Recording, at: int, change: Callable[[PassLine], PassLine]) -> Recording:
    def changed(line: StepLine) -> StepLine:
        assert line.pass_ is not None
        return evolve(line, pass_=change(line.pass_))

    return evolve(run, steps=with_item(run.steps, at, changed))


def in_state(run: Recording, at: int, change: Callable[[StateLine], StateLine]) -> Recording:
    assert run.states is not None
    return evolve(run, states=with_item(run.states, at, change))


def only_difference(run: Recording, at: int) -> Difference:
    """That of the step in line `at`, up to which all agrees."""
    report = replay(run)
    (difference,) = report.differences
    assert report.agreed == at
    assert difference.step == run.steps[at].step
    return difference


def line_of(run: Recording, message: int) -> int:
    """The line of the step that sent a message; in a toy run its time is the step."""
    return [line.step for line in run.steps].index(int(run.messages[message].ts))


def test_another_block_in_a_table_is_a_difference(run: Recording) -> None:
    def other_block(recorded: PassLine) -> PassLine:
        def last(block: int) -> int:
            return block + 1

        entry = recorded.new[0]
        blocks = with_item(entry.block_ids, len(entry.block_ids) - 1, last)
        return evolve(recorded, new=(evolve(entry, block_ids=blocks), *recorded.new[1:]))

    at = next(i for i, line in enumerate(run.steps) if i > 10 and line.pass_ and line.pass_.new)
    found = only_difference(in_pass(run, at, other_block), at)
    assert (found.place, found.field) == ("pass", "new")


def test_another_order_of_scheduling_is_a_difference(run: Recording) -> None:
    at = next(
        i
        for i, line in enumerate(run.steps)
        if i > 20 and line.pass_ and len(line.pass_.cached) > 1
    )
    wrong = in_pass(run, at, lambda p: evolve(p, scheduled=swapped(p.scheduled)))
    found = only_difference(wrong, at)
    assert (found.place, found.field) == ("pass", "scheduled")


@pytest.mark.parametrize("moment", ["scheduled", "updated"])
def test_another_order_of_the_free_queue_is_a_difference(run: Recording, moment: str) -> None:
    assert run.states is not None
    at = next(i for i, s in enumerate(run.states) if i > 30 and s.at == moment and len(s.free) > 1)
    wrong = in_state(run, at, lambda s: evolve(s, free=swapped(s.free)))
    found = only_difference(wrong, at // 2)
    assert (found.place, found.field) == (f"state {moment}", "free")


def test_another_count_of_holders_is_a_difference(run: Recording) -> None:
    wrong = in_state(run, 41, lambda s: evolve(s, ref=with_item(s.ref, 1, lambda n: n + 1)))
    found = only_difference(wrong, 20)
    assert (found.place, found.field) == ("state updated", "ref")


def test_another_hash_is_a_difference(run: Recording) -> None:
    at = next(i for i, m in enumerate(run.messages) if isinstance(m.events[-1], BlockStored))
    last = len(run.messages[at].events) - 1
    stored = run.messages[at].events[last]
    assert isinstance(stored, BlockStored)
    (*hashes, name) = stored.block_hashes
    assert isinstance(name, int)
    wrong = evolve(stored, block_hashes=(*hashes, name ^ 1))
    message = evolve(run.messages[at], events=(*run.messages[at].events[:last], wrong))
    wrong_run = evolve(run, messages=with_item(run.messages, at, lambda _: message))
    found = only_difference(wrong_run, line_of(run, at))
    assert (found.place, found.field) == (f"message {at}", f"event {last}")


def test_an_event_that_was_not_published_is_a_difference(run: Recording) -> None:
    at = next(i for i, m in enumerate(run.messages) if i > 10 and len(m.events) > 1)
    dropped = with_item(run.messages, at, lambda m: evolve(m, events=m.events[:-1]))
    found = only_difference(evolve(run, messages=dropped), line_of(run, at))
    assert found.place == f"message {at}"
    assert found.field == f"event {len(run.messages[at].events) - 1}"
    assert found.recorded is None


def test_what_is_left_over_is_a_difference(run: Recording) -> None:
    """Everything agrees, and then the recording goes on."""
    longer = evolve(run, messages=(*run.messages, run.messages[-1]))
    report = replay(longer)
    assert report.agreed == report.steps
    assert [d.field for d in report.differences] == ["lines of events"]


OTHER_SETTINGS: dict[str, Callable[[RunConfig], RunConfig]] = {
    "one request at once": lambda c: evolve(c, max_num_seqs=1),
    "fewer tokens a pass": lambda c: evolve(c, max_num_batched_tokens=4),
    "more blocks": lambda c: evolve(c, num_gpu_blocks=40),
    "by priority": lambda c: evolve(c, policy="priority"),
    "look-ahead slots": lambda c: evolve(c, num_lookahead_tokens=3),
    "no prefix caching": lambda c: evolve(c, enable_prefix_caching=False),
    "shorter texts": lambda c: evolve(c, max_model_len=24),
}


@pytest.mark.parametrize("name", OTHER_SETTINGS)
def test_other_settings_make_a_difference(run: Recording, name: str) -> None:
    """Also where the machine then does something whose outcome nobody recorded."""
    differences = replay(evolve(run, config=OTHER_SETTINGS[name](run.config))).differences
    assert len({difference.step for difference in differences}) == 1


def test_an_outcome_that_is_none_of_its_pass_is_refused(run: Recording) -> None:
    def without_samples(line: StepLine) -> StepLine:
        assert line.outcome is not None
        return evolve(line, outcome=evolve(line.outcome, sampled=()))

    wrong = evolve(run, steps=with_item(run.steps, 30, without_samples))
    with pytest.raises(RecordingError) as caught:
        replay(wrong)
    message = str(caught.value)
    step = run.steps[30].step
    assert message.startswith(
        f"spec_tight.steps.jsonl:31: step {step} cannot be carried out (Complete: request "
    )
    assert message.endswith("); record the run again")


def test_an_asynchronous_run_is_refused(run: Recording) -> None:
    with pytest.raises(RecordingError, match="keeps one step in flight; replay a synchronous run"):
        replay(evolve(run, config=evolve(run.config, async_scheduling=True)))
