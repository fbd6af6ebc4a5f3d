"""Stories about engines beside the specification: what is broken is found, made small and told;
what is known, or proves nothing, is not reported as broken.

The ten faults of `broken_engines` are found by the campaign that a user gets. One takes some
hundred runs, as a budget that is not given back shows only where somebody with worse priority was
scheduled first, gives way to a second, and the tokens are just too few for a third; it is given a
seed from which it takes a hundred.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from re import fullmatch

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from servecheck.engines.fast.adapters import FastCache, FastLoop
from servecheck.engines.fast.refine import Refinement
from servecheck.engines.protocol import EngineError, EngineFactory, Unsupported
from servecheck.fuzz import machine_for
from servecheck.fuzz.campaign import Verdict, campaign
from servecheck.fuzz.retry import rerun
from servecheck.fuzz.shrink import shrunk_divergence
from servecheck.fuzz.tell import PropertyFell
from servecheck.lockstep.compare import Difference
from servecheck.lockstep.report import of_divergence, of_fall, sides
from servecheck.lockstep.subject import Parted, Subject, parted
from servecheck.lockstep.twice import twice
from servecheck.trace.read import read_trace
from servespec.actions import Action, Complete, Output, Schedule, Submit
from servespec.config import Config
from servespec.machine import Machine
from servespec.policy import VLLM_0_33, prioritised
from servespec.properties import PROPERTIES
from tests import broken_engines as broken

GOLDEN = Path(__file__).parent / "golden"

QUICK = settings(
    max_examples=15,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def ticking() -> Callable[[], float]:
    """A clock by which each run takes a second."""
    seconds = count()
    return lambda: float(next(seconds))


# --- what is broken is found ----------------------------------------------------------------


FOUND_SOON = [fault for fault in broken.FAULTS if fault is not broken.BudgetLost]
"""The other one takes ten thousands of steps: see `tests/test_fuzz_power.py`."""


@pytest.mark.parametrize("fault", FOUND_SOON, ids=lambda f: f.__name__)
def test_a_broken_engine_is_found_and_made_small(fault: type[FastLoop]) -> None:
    found = campaign(seconds=1000, clock=ticking(), following=fault)
    assert found.verdict is Verdict.DIVERGES
    assert found.fall is not None
    assert found.fall.property_id == "LOCKSTEP"
    assert len(found.fall.actions) <= 10
    assert found.report is not None
    assert found.report.engine is not None
    assert found.report.lines[0] == "verdict    diverges"


BESIDE = Config(
    num_blocks=5, block_size=2, max_model_len=8, max_num_batched_tokens=4, max_num_seqs=3
)
GIVES_WAY: tuple[Action, ...] = (
    Submit("worse", (0,), 4, priority=1),
    Schedule(),
    Submit("needs", (1, 1), 4),
    Submit("long", (2, 2, 2, 2), 2),
    Complete((Output("worse", (0,)),)),
    Schedule(),
    Complete((Output("worse", (0,)), Output("needs", (0,)))),
    Schedule(),
)


def test_a_budget_that_is_not_given_back_is_seen_where_somebody_gives_way() -> None:
    subject = Subject.of(broken.BudgetLost)
    machine = Machine(BESIDE, prioritised(VLLM_0_33))
    assert parted(Subject.of(FastLoop), machine, GIVES_WAY) is None
    found = parted(subject, machine, GIVES_WAY)
    assert found is not None
    assert str(found.divergence.differences[0]) == str(Difference("plan of long: tokens", 3, 2))
    smallest = shrunk_divergence(subject, found)
    assert len(smallest.actions) <= 8
    assert twice(subject, smallest.machine, smallest.actions).confirms(smallest.divergence)


def test_a_campaign_of_a_seed_finds_the_same_again() -> None:
    first, again = (
        campaign(seconds=1000, clock=ticking(), following=broken.HeadFirst) for _ in range(2)
    )
    assert first.report == again.report


@pytest.mark.parametrize("subject", [FastLoop, FastCache, Subject(Refinement)], ids=str)
def test_the_fast_engine_holds(subject: EngineFactory | Subject) -> None:
    found = campaign(seconds=12, clock=ticking(), following=subject)
    assert found.verdict is Verdict.HOLDS
    assert found.seen is not None
    assert found.seen.engine.name == "fast"
    assert found.seen.followed == found.steps > 100
    assert found.seen.compared > found.steps
    assert not found.seen.unseen


# --- the report -----------------------------------------------------------------------------

SMALL = Config(
    num_blocks=5, block_size=1, max_model_len=3, max_num_batched_tokens=4, max_num_seqs=1
)
PROGRAM: tuple[Action, ...] = (
    Submit("r0", (0, 0), 1),
    Schedule(),
    Complete((Output("r0", (0,)),)),
)


@pytest.fixture
def head_first() -> Parted:
    found = parted(Subject.of(broken.HeadFirst), Machine(SMALL, VLLM_0_33), PROGRAM)
    assert found is not None
    return found


def test_the_report_of_a_divergence(head_first: Parted) -> None:
    report = of_divergence(head_first, broken.HeadFirst.capabilities, replay="servecheck fuzz …")
    text = "\n".join(report.lines).replace(broken.HeadFirst.capabilities.version, "VERSION")
    assert text + "\n" == (GOLDEN / "report-divergence.txt").read_text(encoding="utf-8")


def test_the_report_of_a_property() -> None:
    asked = PROPERTIES["LRU-3"]
    report = of_fall(asked.id, asked.statement, "the queue is (1, 2)", SMALL, VLLM_0_33, PROGRAM)
    text = "\n".join(report.lines)
    assert text + "\n" == (GOLDEN / "report-property.txt").read_text(encoding="utf-8")


def test_long_sequences_are_shown_where_they_first_differ() -> None:
    mine = tuple(range(100))
    theirs = (*mine[:50], 7, *mine[51:])
    assert sides(Difference("free queue", mine, theirs)) == (
        "(…, 47, 48, 49, 50, 51, 52, 53, …), from place 47 of 100",
        "(…, 47, 48, 49, 7, 51, 52, 53, …), from place 47 of 100",
    )
    assert sides(Difference("free queue", (1, 2), (1,))) == ("(1, 2)", "(1)")
    assert len(sides(Difference("x", "y" * 1000, 3))[0]) == 160


class Younger(Refinement):
    """The engine that has come all the way releases from the wrong end."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.old.pool.tail_first = not self.old.pool.tail_first


def test_a_refinement_that_fails_is_told_by_the_part_that_differs() -> None:
    found = parted(Subject(Younger), Machine(SMALL, VLLM_0_33), PROGRAM)
    assert found is not None
    report = of_divergence(found, Younger.capabilities)
    assert report.property_id == "REF-1"
    assert report.rule == "8"
    assert report.expected == "REF-1: pool.free: (3, 4, 2, 1)"
    assert report.observed == "REF-1: pool.free: (3, 4, 1, 2)"


# --- what is written ------------------------------------------------------------------------


def test_the_program_is_written_and_falls_again(tmp_path: Path) -> None:
    found = campaign(
        seconds=1000,
        clock=ticking(),
        following=broken.HeadFirst,
        failures=tmp_path / "failures",
        again="servecheck fuzz --engine x:y",
    )
    (kept,) = (tmp_path / "failures").iterdir()
    assert found.trace == kept
    assert fullmatch(r"LOCKSTEP-fast-[0-9a-f]{8}\.jsonl", kept.name)
    assert found.report is not None
    assert found.report.replay == f"servecheck fuzz --engine x:y --program {found.trace}"
    trace = read_trace(found.trace)
    assert trace.actions == found.report.actions
    assert trace.verdict is not None
    assert (trace.verdict.verdict, trace.verdict.property) == ("falls", "LOCKSTEP")
    again = rerun(trace, broken.HeadFirst)
    assert again.verdict is Verdict.DIVERGES
    assert again.report is not None
    assert again.report.lines[:-1] == found.report.lines[:-1]
    assert rerun(trace, FastLoop).verdict is Verdict.HOLDS


# --- what proves nothing --------------------------------------------------------------------


def test_an_engine_that_does_not_do_the_same_twice_has_not_diverged() -> None:
    found = campaign(seconds=1000, clock=ticking(), following=broken.Whimsical)
    assert found.verdict is Verdict.NONDETERMINISTIC
    assert found.report is None
    assert "agrees with the specification" in found.notes[0]


def test_an_engine_that_is_gone_has_not_diverged() -> None:
    found = campaign(seconds=1000, clock=ticking(), following=broken.Mortal)
    assert found.verdict is Verdict.UNDETERMINED
    assert found.fall is None
    assert found.notes[0] == "the engine is gone: the lights went out"
    assert found.notes[-1].endswith("schedule")
    assert not found.interrupted


# --- worlds ---------------------------------------------------------------------------------


def test_only_worlds_that_the_engine_takes_are_drawn() -> None:
    found = campaign(seconds=60, clock=ticking(), following=broken.Picky)
    assert found.verdict is Verdict.HOLDS
    assert found.runs == 59, "no run was thrown away"
    assert found.worlds > 3
    assert found.seen is not None
    assert found.seen.refused > 0, "sizes that do not go together are refused, and drawn again"


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        (broken.Nobody, "there is none that I take"),
        (broken.Liar, "liar says that it has level STATE, and lacks methods of it"),
        (broken.Stillborn, "the engine cannot be made: RuntimeError: no memory was given"),
        (broken.no_engine, "what the factory makes, a int, is no engine"),
    ],
)
def test_an_engine_that_cannot_be_checked_is_refused(engine: EngineFactory, why: str) -> None:
    with pytest.raises(EngineError, match=why):
        campaign(seconds=10, clock=ticking(), following=engine)


def test_a_profile_that_the_engine_does_not_take_is_refused() -> None:
    with pytest.raises(Unsupported, match="this is VLLM_0_33"):
        campaign(seconds=10, clock=ticking(), profile="STATIC", following=broken.Picky)


# --- a class for pytest ---------------------------------------------------------------------


@pytest.mark.parametrize("engine", [FastLoop, FastCache, broken.Picky])
def test_a_machine_for_a_sound_engine_passes(engine: EngineFactory) -> None:
    kind = machine_for(engine)
    run_state_machine_as_test(kind, settings=QUICK)
    assert kind.tally.steps > 50
    assert hasattr(kind.TestCase, "runTest")


def test_a_machine_for_a_broken_engine_fails() -> None:
    with pytest.raises(PropertyFell, match=r"LOCKSTEP falls: fast .* diverges at action"):
        run_state_machine_as_test(
            machine_for(broken.HeadFirst, SMALL, VLLM_0_33),
            settings=settings(QUICK, phases=[Phase.generate]),
        )


def test_a_machine_for_an_engine_that_takes_nothing_says_so() -> None:
    with pytest.raises(EngineError, match="there is none that I take"):
        run_state_machine_as_test(machine_for(broken.Nobody), settings=QUICK)
