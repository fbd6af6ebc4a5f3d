"""Stories about known deviations: what the register says, what the trace of an entry must show, and
how a run goes on from the state that the engine is in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from itertools import count
from pathlib import Path

import pytest
from attrs import evolve

from servecheck.engines.fast.adapters import FastLoop
from servecheck.engines.fast.refine import Refinement
from servecheck.engines.protocol import Capabilities, EngineFactory, Level, SeenState
from servecheck.fuzz.campaign import Summary, Verdict, campaign
from servecheck.fuzz.retry import rerun
from servecheck.fuzz.wander import Wanderer
from servecheck.lockstep.adopt import NotAdoptable, Shown, adopted
from servecheck.lockstep.compare import Difference
from servecheck.lockstep.deviations import Deviation, numbers, read_deviations
from servecheck.lockstep.follow import follower
from servecheck.lockstep.register import RegisterError
from servecheck.lockstep.report import of_divergence
from servecheck.lockstep.shown import check_traces, shown
from servecheck.lockstep.subject import Adoption, Subject, parted
from servecheck.trace.read import read_trace
from servecheck.trace.write import record
from servespec.actions import Abort, Action, Complete, Output, ResetCache, Schedule, Submit
from servespec.config import Config
from servespec.machine import Machine
from servespec.plan import State
from servespec.policy import VLLM_0_33, HitCap, Policy
from servespec.properties import PROPERTIES, Step
from tests import broken_engines as broken

SMALL = Config(
    num_blocks=5, block_size=1, max_model_len=4, max_num_batched_tokens=4, max_num_seqs=2
)
ENDS: tuple[Action, ...] = (
    Submit("a", (0, 0), 1),
    Schedule(),
    Complete((Output("a", (0,)),)),
)
"""A request of two blocks comes and goes."""
BEGINS: tuple[Action, ...] = (
    Submit("a", (0, 0), 2),
    Schedule(),
    Complete((Output("a", (0,)),)),
)
"""It is still there."""
GIVES_WAY: tuple[Action, ...] = (
    Submit("a", (0, 0), 2),
    Submit("b", (1, 1), 2),
    Schedule(),
    Complete((Output("a", (0,)), Output("b", (0,)))),
    Schedule(),
)
PROGRAMS = (
    ENDS,
    (*BEGINS, Abort("a")),
    (*BEGINS, ResetCache(True)),
    GIVES_WAY,
)
"""A table of two blocks is released, by each of the actions that can."""
BY_TWO = Config(
    num_blocks=5, block_size=2, max_model_len=8, max_num_batched_tokens=8, max_num_seqs=2
)
GIVES_WAY_ITSELF: tuple[Action, ...] = (
    Submit("a", (0, 0, 0), 4),
    Submit("b", (1, 1, 1, 1), 4),
    Schedule(),
    Complete((Output("a", (0,)), Output("b", (0,)))),
    Schedule(),
)
"""Nobody takes a block of what is released."""


def ticking() -> Callable[[], float]:
    """A clock by which each run takes a second."""
    seconds = count()
    return lambda: float(next(seconds))


ENTRY = {
    "id": '"head-first"',
    "engine": '"fast"',
    "versions": '["0.0.1", "99.0"]',
    "rule": '"8"',
    "field": '"free *"',
    "action": '"Complete"',
    "trace": '"Complete.jsonl"',
    "link": '"https://example.org/1"',
    "expires": "2100-01-31",
}


def written(folder: Path, *entries: dict[str, str]) -> Path:
    """A register, and beside it a trace for each action by which a table can be released."""
    machine = Machine(SMALL, VLLM_0_33)
    for program in PROGRAMS:
        record(folder / f"{type(program[-1]).__name__}.jsonl", machine, program)
    tables = ("\n".join(f"{name} = {value}" for name, value in e.items()) for e in entries)
    file = folder / "deviations.toml"
    text = "\n".join(f"[[deviation]]\n{table}\n" for table in tables)
    file.write_text(text, encoding="utf-8")
    return file


def register(folder: Path, **changed: str | None) -> Path:
    entry = {**ENTRY, **changed}
    return written(folder, {name: value for name, value in entry.items() if value is not None})


def releases(folder: Path, engine: str = "fast") -> tuple[Deviation, ...]:
    """That this engine releases from the wrong end, at whatever action."""
    kinds = [type(program[-1]).__name__ for program in PROGRAMS]
    itself = {"id": '"head-first-itself"', "action": '"Schedule"', "trace": '"itself.jsonl"'}
    record(folder / "itself.jsonl", Machine(BY_TWO, VLLM_0_33), GIVES_WAY_ITSELF)
    entries = (
        {
            **ENTRY,
            "id": f'"head-first-{kind}"',
            "engine": f'"{engine}"',
            "action": f'"{kind}"',
            # Who takes a block in the same pass takes another one.
            "field": '"plan of *: table"' if kind == "Schedule" else '"free queue"',
            "trace": f'"{kind}.jsonl"',
        }
        for kind in kinds
    )
    return read_deviations(written(folder, *entries, {**ENTRY, **itself}))


def known(
    entries: tuple[Deviation, ...],
    engine: EngineFactory,
    today: date = date(2030, 1, 1),
    level: Level | None = None,
    seconds: float = 20,
) -> Summary:
    subject = Subject.of(engine, entries, level)
    return campaign(
        seconds=seconds, clock=ticking(), profile="VLLM_0_33", following=subject, today=today
    )


# --- what is adopted ------------------------------------------------------------------------


class Adopting:
    """The fast engine, whose state is adopted after every action though it does not deviate."""

    def __init__(self, machine: Machine) -> None:
        self.engine = FastLoop(machine.config, machine.policy)
        self.inner = follower(self.engine, machine)

    def allows(self, machine: Machine, state: State, action: Action) -> bool:
        return True

    def follow(self, step: Step) -> None:
        self.inner.follow(step)
        seen = Shown(self.inner.comparison.last_plan, self.engine.see_state())
        assert adopted(step, seen, self.inner.comparison.names) == step.after


@pytest.mark.parametrize("block", range(2))
def test_what_is_adopted_from_a_sound_engine_is_the_machines_own_state(block: int) -> None:
    """Given walks through all kinds of sizes and choices; when the state of an engine that does not
    deviate is adopted, then it is the machine's, what is hidden and the content included."""
    steps = 0
    for seed in range(60 * block, 60 * block + 60):
        wanderer = Wanderer(seed, tuple(PROPERTIES.values()), following=Adopting)
        steps += len(wanderer.go(25).actions)
    assert steps > 1000


def test_a_deviating_engine_is_followed_on(tmp_path: Path) -> None:
    """Given an engine that releases from the wrong end, at whatever action; when that is known,
    then the campaign holds, every action is followed, and it tells how often it adopted."""
    found = known(releases(tmp_path), broken.HeadFirst)
    assert found.verdict is Verdict.HOLDS
    assert found.fall is None
    assert found.seen is not None
    assert found.seen.adopted == found.seen.known
    assert found.seen.adopted["head-first-Complete"] > 3
    assert found.seen.adopted.total() > 20
    assert found.seen.followed + found.seen.adopted.total() == found.steps
    assert not found.seen.let_go


class TwoFaults(broken.HeadFirst):
    """It releases from the wrong end, and holds that whoever waits is not there to be aborted."""

    def abort(self, request_id: str) -> bool:
        waits = any(r.id == request_id for r in self.engine.waiting)
        return super().abort(request_id) and not waits


LEAVES: tuple[Action, ...] = (*ENDS, Submit("b", (0, 0), 1), Abort("b"))


def test_a_second_fault_behind_a_known_deviation_is_found(tmp_path: Path) -> None:
    """Given two faults, of which one is known: when a program meets first the one and then the
    other, then the second is told, from the state that was adopted at the first."""
    subject = Subject.of(TwoFaults, releases(tmp_path))
    found = parted(subject, Machine(SMALL, VLLM_0_33), LEAVES)
    assert found is not None
    assert found.adoptions == (Adoption(2, "head-first-Complete"),)
    assert found.step.before.pool.free == (3, 4, 1, 2), "the engine's queue, not 3, 4, 2, 1"
    assert found.divergence.differences == (Difference("aborted", True, False),)
    report = of_divergence(found, TwoFaults.capabilities)
    assert "adopted    the engine's state after 3, by head-first-Complete" in report.lines
    sound = Subject.of(broken.HeadFirst, releases(tmp_path))
    assert parted(sound, Machine(SMALL, VLLM_0_33), LEAVES) is None


def test_a_campaign_finds_the_second_fault(tmp_path: Path) -> None:
    found = known(releases(tmp_path), TwoFaults, seconds=1000)
    assert found.verdict is Verdict.DIVERGES
    assert found.report is not None
    assert found.report.observed == "aborted: False"
    assert found.seen is not None
    assert found.seen.adopted.total() > 0


class Recomputes(FastLoop):
    """Hits are not capped: the last token of a text is computed into a block that others read."""

    def __init__(self, config: Config, policy: Policy) -> None:
        super().__init__(config, policy)
        self.engine.policy = evolve(policy, hit_cap=HitCap.NONE)


def test_a_property_that_falls_from_an_adopted_state_is_told_as_such(tmp_path: Path) -> None:
    """Given an entry so wide that it knows everything; when what was adopted leads to a fall, then
    the report does not lay it at the specification's door alone."""
    changed = {"field": '"*"', "action": '"Schedule"', "trace": '"back.jsonl"', "rule": '"11"'}
    record(tmp_path / "back.jsonl", Machine(SMALL, VLLM_0_33), COMES_BACK)
    entries = read_deviations(written(tmp_path, {**ENTRY, **changed}))
    found = known(entries, Recomputes, seconds=1000)
    assert found.verdict is Verdict.FALLS
    assert found.report is not None
    assert found.report.observed.endswith(" the engine's own state was adopted)")


COMES_BACK: tuple[Action, ...] = (*ENDS, Submit("b", (0, 0), 1), Schedule())


# --- what cannot be adopted -----------------------------------------------------------------


def test_below_the_level_of_states_an_engine_is_let_go(tmp_path: Path) -> None:
    """Given a known deviation of an engine that shows its plans only; when it is met, then the
    engine is let go, and the campaign is undetermined: never a pass."""
    machine = Machine(SMALL, VLLM_0_33)
    record(tmp_path / "back.jsonl", machine, COMES_BACK)
    changed = {"field": '"*"', "action": '"Schedule"', "trace": '"back.jsonl"'}
    entries = read_deviations(written(tmp_path, {**ENTRY, **changed, "rule": '"11"'}))
    found = known(entries, broken.WholeHit, level=Level.STEPS)
    assert found.verdict is Verdict.UNDETERMINED
    assert found.seen is not None
    assert found.seen.let_go == found.seen.known
    assert found.seen.followed < found.steps
    assert found.notes[0].endswith("from there: at level steps it does not show its state")


def test_a_state_that_is_not_legal_is_not_adopted(tmp_path: Path) -> None:
    machine = Machine(SMALL, VLLM_0_33)
    record(tmp_path / "back.jsonl", machine, COMES_BACK)
    changed = {"field": '"*"', "action": '"Schedule"', "trace": '"back.jsonl"', "rule": '"7"'}
    entries = read_deviations(written(tmp_path, {**ENTRY, **changed}))
    found = known(entries, broken.HitStaysFree)
    assert found.verdict is Verdict.UNDETERMINED
    assert "what it holds is no legal state: " in found.notes[0]  # OWN-1, or what comes of it


@pytest.mark.parametrize(
    ("hides", "why"),
    [
        (lambda s: evolve(s, running=None), "it does not show who runs"),
        (lambda s: evolve(s, pool=evolve(s.pool, free=None)), "does not show its free queue"),
        (lambda s: evolve(s, pool=evolve(s.pool, index=None)), "does not show its index"),
        (lambda s: evolve(s, running=s.running * 2), "it shows a request twice"),
        (
            lambda s: evolve(s, running=(evolve(s.running[0], id="z"),)),
            "it holds z, who is not here",
        ),
        (
            lambda s: evolve(s, running=(evolve(s.running[0], length=9),)),
            "a has 9 tokens, and nobody brought those",
        ),
        (
            lambda s: evolve(s, running=(evolve(s.running[0], computed=-1),)),
            "a has computed -1 of 3 tokens",
        ),
        (
            lambda s: evolve(s, pool=evolve(s.pool, free=(9,))),
            "it shows blocks that are none of 1 to 4",
        ),
        (lambda s: evolve(s, pool=evolve(s.pool, index=s.pool.index * 2)), "carries two keys"),
        (lambda s: evolve(s, pool=evolve(s.pool, free=(3, 3, 4))), "OWN-1"),
    ],
)
def test_what_is_hidden_or_nonsense_is_not_adopted(
    hides: Callable[[SeenState], SeenState], why: str
) -> None:
    machine = Machine(SMALL, VLLM_0_33)
    engine = FastLoop(SMALL, VLLM_0_33)
    beside, state = follower(engine, machine), machine.initial()
    for action in BEGINS:
        moved = machine.apply(state, action)
        step = Step(machine, state, action, moved.state, moved.events)
        beside.follow(step)
        state = moved.state
    seen = Shown(beside.comparison.last_plan, hides(engine.see_state()))
    with pytest.raises(NotAdoptable, match=why):
        adopted(step, seen, beside.comparison.names)


def test_a_refinement_has_no_deviations(tmp_path: Path) -> None:
    machine = Machine(SMALL, VLLM_0_33)
    moved = machine.apply(machine.initial(), Schedule())
    step = Step(machine, machine.initial(), Schedule(), moved.state, moved.events)
    with pytest.raises(NotAdoptable):
        Refinement(machine).adopt(step)


# --- the trace of an entry ------------------------------------------------------------------


def test_the_register_that_comes_along_is_read_and_its_traces_are_there() -> None:
    entries = read_deviations()
    check_traces(entries)
    assert shown(subject_with(entries)) <= {entry.id for entry in entries}


def subject_with(
    entries: tuple[Deviation, ...], engine: EngineFactory = broken.HeadFirst
) -> Subject:
    subject = Subject.of(engine, entries)
    subject.make(Machine(SMALL, VLLM_0_33))
    return subject


def test_every_trace_shows_its_deviation(tmp_path: Path) -> None:
    entries = releases(tmp_path)
    check_traces(entries)
    assert shown(subject_with(entries)) == {entry.id for entry in entries}
    assert shown(subject_with(entries, FastLoop)) == frozenset(), "an engine that is mended"


def test_a_program_that_meets_a_known_deviation_only_is_no_failure(tmp_path: Path) -> None:
    subject = Subject.of(broken.HeadFirst, releases(tmp_path))
    found = rerun(read_trace(tmp_path / "Complete.jsonl"), subject)
    assert found.verdict is Verdict.HOLDS
    assert found.seen is not None
    assert found.seen.adopted == {"head-first-Complete": 1}


def test_a_trace_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RegisterError, match=r"deviation 1, field trace: there is no file .*gone"):
        read_deviations(register(tmp_path, trace='"gone.jsonl"'))


def test_a_trace_that_is_none_is_named(tmp_path: Path) -> None:
    entries = read_deviations(register(tmp_path, trace='"deviations.toml"'))
    with pytest.raises(RegisterError, match=r"deviation 'head-first', field trace: .*:1: not JSON"):
        check_traces(entries)


def test_a_trace_that_ends_otherwise_is_named(tmp_path: Path) -> None:
    entries = read_deviations(register(tmp_path, trace='"Abort.jsonl"'))
    with pytest.raises(RegisterError, match="ends with Abort, and the deviation shows at Complete"):
        check_traces(entries)


def test_a_trace_that_shows_something_else_is_named(tmp_path: Path) -> None:
    entries = read_deviations(register(tmp_path, field='"waiting"'))
    with pytest.raises(RegisterError, match=r"shows something else: fast .*: free queue: "):
        known(entries, broken.HeadFirst)


def test_a_trace_of_other_sizes_is_named(tmp_path: Path) -> None:
    class Tiny(broken.Picky):
        capabilities = Capabilities("fast", "1.0", Level.STATE, broken.Picky.capabilities.cannot)

    record(tmp_path / "big.jsonl", Machine(evolve(SMALL, num_blocks=9), VLLM_0_33), ENDS)
    entries = read_deviations(register(tmp_path, trace='"big.jsonl"'))
    with pytest.raises(RegisterError, match=r"does not take the sizes and choices of .*big"):
        known(entries, Tiny)


# --- entries that are out of date -----------------------------------------------------------


def test_an_entry_that_nothing_shows_is_stale(tmp_path: Path) -> None:
    found = known(read_deviations(register(tmp_path)), FastLoop)
    assert found.verdict is Verdict.STALE
    assert found.notes == ("deviation 'head-first' is stale: it matched nothing; take it out",)


def test_an_entry_that_a_short_search_does_not_come_upon_is_not_stale(tmp_path: Path) -> None:
    found = known(read_deviations(register(tmp_path)), broken.HeadFirst, seconds=1)
    assert found.seen is not None
    assert found.notes == ()


def test_an_entry_for_another_version_says_nothing(tmp_path: Path) -> None:
    entries = read_deviations(register(tmp_path, versions='["98.0", "99.0"]'))
    assert known(entries, FastLoop).verdict is Verdict.HOLDS


def test_an_entry_says_nothing_where_it_cannot_be_seen(tmp_path: Path) -> None:
    """Given an entry on the free queue; where plans alone are compared, nothing can show it, and it
    is not stale for that."""
    entries = read_deviations(register(tmp_path, levels='["pool", "state"]'))
    assert known(entries, broken.HeadFirst, level=Level.STEPS, seconds=2).notes == ()
    assert known(entries, FastLoop, level=Level.STEPS).verdict is Verdict.HOLDS
    assert known(entries, FastLoop).verdict is Verdict.STALE


@pytest.mark.parametrize(
    ("version", "covered"),
    [
        ("0.33", True),
        ("0.33.0", True),
        ("0.33.2", True),
        ("0.33.2+cu128", True),
        ("0.33.2.1", False),
        ("0.33.3", False),
        ("0.32.9", False),
        ("1.33.1", False),
        ("unknown", False),
    ],
)
def test_a_range_of_versions(version: str, covered: bool, tmp_path: Path) -> None:
    (entry,) = read_deviations(register(tmp_path, versions='["0.33", "0.33.2"]'))
    assert entry.applies("fast", version, Level.STATE) is covered
    assert not entry.applies("slow", version, Level.STATE)
    assert numbers("0.33.1+cu128") == (0, 33, 1)


@pytest.mark.parametrize(
    ("today", "verdict"),
    [(date(2100, 1, 31), Verdict.HOLDS), (date(2100, 2, 1), Verdict.STALE)],
)
def test_an_entry_expires_the_day_after(today: date, verdict: Verdict, tmp_path: Path) -> None:
    found = known(releases(tmp_path), broken.HeadFirst, today)
    assert found.verdict is verdict
    assert all("expired on 2100-01-31: look again, see https" in note for note in found.notes)


# --- reading --------------------------------------------------------------------------------


def wrong() -> Iterator[tuple[dict[str, str | None], str]]:
    yield {"colour": '"red"'}, "deviation 1, field colour: it is unknown"
    yield {"link": None}, "deviation 1, field link: it is missing"
    yield {"expires": '"soon"'}, "field expires: 'soon' is no date; write 2027-01-31"
    yield {"expires": "2027-01-31T00:00:00"}, "field expires: .* is no date"
    yield {"rule": '"99"'}, "field rule: '99' is unknown"
    yield {"action": '"Sleep"'}, "field action: 'Sleep' is unknown; take one of Submit, "
    yield {"versions": '"0.33"'}, "field versions: '0.33' is no range"
    yield {"versions": '["2", "1"]'}, "field versions: 2 is above 1"
    yield {"link": '"example.org"'}, "field link: 'example.org' is no link"
    yield {"levels": '["deep"]'}, "field levels: 'deep' is unknown; take one of events, pool"
    yield {"id": "3"}, "field id: expected a text, found 3"
    yield {"id": '"x'}, "this is no TOML"


@pytest.mark.parametrize(("changed", "what"), list(wrong()))
def test_a_wrong_entry_is_named(changed: dict[str, str | None], what: str, tmp_path: Path) -> None:
    file = register(tmp_path, **changed)
    with pytest.raises(RegisterError, match=what) as caught:
        read_deviations(file)
    assert str(file) in str(caught.value)


def test_a_register_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RegisterError, match="cannot be read"):
        read_deviations(tmp_path / "none.toml")
