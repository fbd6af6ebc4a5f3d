"""The falls that the project knows of go on falling, each on a shortest run: exhaustive search
finds what is committed, and finds every one of them in a scope of the registry."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from servecheck.explore.falls import KNOWN_FALLS, KnownFall, first_fall, main, named_anew
from servecheck.explore.liveness import Fits, liveness
from servecheck.explore.scopes import ServingScope, named
from servecheck.explore.told import lap
from servecheck.trace.fairness import fills_the_model, goes_on
from servecheck.trace.lasso import LASSO, WATCHED
from servecheck.trace.read import read_trace
from servecheck.trace.replay import replay_trace
from servespec.actions import Abort, Action, Complete, Output, Schedule, Submit
from servespec.config import Config
from servespec.events import Delivered, Preempted
from servespec.machine import Machine, fits_alone
from servespec.plan import State
from servespec.policy import VLLM_0_33
from servespec.properties import Falls

ROOT = Path(__file__).resolve().parents[1]
FALLS, DOCS = ROOT / "traces" / "falls", ROOT / "docs"
KNOWN = [(name, fall) for name, asked in WATCHED.items() for fall in asked.falls]
LASSOS = [fall.trace for fall in LASSO.falls]


def test_there_is_one_trace_for_each_known_fall() -> None:
    told = [fall.trace for _, fall in KNOWN]
    assert len(set(told)) == len(told)
    assert {path.name for path in FALLS.glob("*.jsonl")} == set(told)
    assert [f"{fall.name}.jsonl" for fall in KNOWN_FALLS if fall.property_id == "LIV-1"] == LASSOS
    assert {f"{fall.name}.jsonl" for fall in KNOWN_FALLS} == set(told)
    readme = (FALLS / "README.md").read_text()
    for trace in told:
        actions = len(read_trace(FALLS / trace).lines)
        row = next(r for r in readme.splitlines() if r.startswith(f"| `{Path(trace).stem}` |"))
        assert row.endswith(f" {actions} |")


@pytest.mark.parametrize(("name", "fall"), KNOWN, ids=[fall.trace for _, fall in KNOWN])
def test_a_known_fall_goes_on(name: str, fall: Falls) -> None:
    trace = read_trace(FALLS / fall.trace)
    machine, last = trace.machine, len(trace.lines) - 1
    assert fall.under(machine.config, machine.policy)
    report = replay_trace(trace)
    assert report.differences == ()
    assert report.recorded is not None
    assert (report.recorded.verdict, report.recorded.property) == ("falls", name)
    assert report.reproduced
    mine = [fell for fell in report.fallen if fell.fallen.property.id == name]
    assert [fell.n for fell in mine] == [last]
    assert mine[0].fallen.what == report.recorded.what
    assert all(fell.fallen.known for fell in report.fallen)
    assert last < 14


# --- shortest ------------------------------------------------------------------------------


@pytest.mark.parametrize("fall", KNOWN_FALLS, ids=[fall.name for fall in KNOWN_FALLS])
def test_what_is_committed_is_what_the_search_finds(fall: KnownFall) -> None:
    trace = read_trace(FALLS / f"{fall.name}.jsonl")
    assert trace.machine == fall.system.machine
    assert trace.actions == fall.shortest()


def test_the_command_writes_the_same_file_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """But for the versions in its first line."""
    main(str(tmp_path), "EVI-1", "LIV-1")
    assert capsys.readouterr().out.splitlines() == [
        str(tmp_path / "EVI-1.jsonl"),
        str(tmp_path / "LIV-1.jsonl"),
    ]
    for name in ("EVI-1", "LIV-1"):
        written, committed = (p / f"{name}.jsonl" for p in (tmp_path, FALLS))
        assert written.read_text().splitlines()[1:] == committed.read_text().splitlines()[1:]


@pytest.mark.parametrize("words", [(), ("somewhere", "CON-4")])
def test_the_command_says_what_it_knows(words: Sequence[str]) -> None:
    with pytest.raises(SystemExit, match=r"FOLDER \[CON-1 \| CON-1r \|"):
        main(*words)


def test_what_does_not_fall_is_told() -> None:
    (evi,) = (fall for fall in KNOWN_FALLS if fall.name == "EVI-1")
    with pytest.raises(LookupError, match="OWN-1 falls on no run of this scope"):
        first_fall(evi.system, "OWN-1")
    with pytest.raises(LookupError, match="LIV-1 falls on no run of this scope"):
        KnownFall("LIV-1", "none", evi.system).shortest()


def test_names_are_given_in_the_order_in_which_they_come() -> None:
    """And given again where they were."""
    b, a = Submit("b", (0,), 1), Submit("a", (0,), 1)
    assert named_anew((b, a, Complete((Output("a", (0,)),)), Abort("b"), b, Schedule())) == (
        Submit("r0", (0,), 1),
        Submit("r1", (0,), 1),
        Complete((Output("r1", (0,)),)),
        Abort("r0"),
        Submit("r0", (0,), 1),
        Schedule(),
    )


# --- in the scopes that everybody searches -------------------------------------------------

SAFETY = {
    "CON-3": ("serving-tiny/priority", "CON-3", 7),
    "CON-1": ("serving-tiny/priority", "CON-1", 9),
    "CON-1r": ("serving-tiny/priority", "CON-1r", 10),
    "BUD-2": ("serving-tiny/draft-budget", "BUD-2", 6),
    "BUD-2-prefill-first": ("serving-tiny/prefill-first", "BUD-2", 5),
    "BUD-2-no-victim": ("serving-tiny/no-victim", "BUD-2", 8),
    "BUD-2-given-back": ("serving-tiny/given-back", "BUD-2", 12),
    "EVI-1": ("serving-tiny/miniature", "EVI-1", 6),
}
"""Of each known fall a scope, the property, and after how many actions it first falls there."""

LIVENESS = {
    "LIV-1": ("serving-tiny/full-prompt", 6),
    "LIV-1-larger-than-pool": ("serving-tiny/small-pool", 4),
    "LIV-1-no-chunks": ("serving-tiny/uncut", 4),
    "LIV-1-no-victim": ("serving-tiny/deadlock", 6),
    "LIV-1-prefill-first": ("serving-tiny/prefill-first", 12),
    "LIV-1-passed-over": ("serving-tiny/passed-over", 16),
    "LIV-1-livelock": ("serving-tiny/together", 12),
}
"""Of each condition of LIV-1 a scope, and the actions of its smallest lasso there."""


def test_each_known_fall_has_a_scope() -> None:
    assert {f"{name}.jsonl" for name in (*SAFETY, *LIVENESS)} == {fall.trace for _, fall in KNOWN}


@pytest.mark.parametrize("name", SAFETY)
def test_a_known_fall_is_found_in_a_scope(name: str) -> None:
    scope, asked, length = SAFETY[name]
    (found,) = named(scope)
    assert isinstance(found, ServingScope)
    (fall,) = (fall for _, fall in KNOWN if fall.trace == f"{name}.jsonl")
    machine = found.system.machine
    assert fall.under(machine.config, machine.policy)
    assert len(first_fall(found.system, asked)) == length


@pytest.mark.parametrize("name", LIVENESS)
def test_a_starved_request_is_found_in_a_scope(name: str) -> None:
    scope, length = LIVENESS[name]
    (found,) = named(scope)
    assert isinstance(found, ServingScope)
    (fall,) = (fall for _, fall in KNOWN if fall.trace == f"{name}.jsonl")
    machine = found.system.machine
    assert fall.under(machine.config, machine.policy)
    lasso = liveness(found.system, fits=Fits.TAGGED).lasso
    assert lasso is not None
    assert len(lasso.actions) == length


# --- loops that go round -------------------------------------------------------------------


def halves(trace: str) -> tuple[Machine, State, tuple[Action, ...], str]:
    """Of a lasso its machine, the state where the loop begins, the loop, and who is starved."""
    read = read_trace(FALLS / trace)
    states = [read.machine.initial()]
    for action in read.actions:
        states.append(read.machine.apply(states[-1], action).state)
    begins = states.index(states[-1])
    assert begins < len(read.actions)
    assert read.verdict is not None
    starved = str(read.verdict.what).split()[0]
    return read.machine, states[-1], read.actions[begins:], starved


@pytest.mark.parametrize("trace", LASSOS)
def test_the_loop_goes_round_for_ever(trace: str) -> None:
    """All that happens on it may happen for ever, passes and outcomes among it; it leads back, and
    one who fits alone gets nothing on the way."""
    machine, began, loop, starved = halves(trace)
    assert any(isinstance(action, Schedule) for action in loop)
    assert any(isinstance(action, Complete) for action in loop)
    state = began
    for _ in range(20):
        for action in loop:
            waits = state.find(starved)
            assert waits is not None
            assert fits_alone(machine, waits)
            assert goes_on(machine.policy, action, waits)
            moved = machine.apply(state, action)
            assert not any(isinstance(e, Delivered) and e.id == starved for e in moved.events)
            state = moved.state
        assert state == began


@pytest.mark.parametrize(
    ("trace", "length", "arrive"),
    [
        ("LIV-1.jsonl", 2, 0),
        ("LIV-1-larger-than-pool.jsonl", 2, 0),
        ("LIV-1-no-chunks.jsonl", 2, 0),
        ("LIV-1-no-victim.jsonl", 2, 0),
        ("LIV-1-prefill-first.jsonl", 3, 1),
        ("LIV-1-passed-over.jsonl", 6, 2),
        ("LIV-1-livelock.jsonl", 8, 0),
    ],
)
def test_what_is_on_the_loop(trace: str, length: int, arrive: int) -> None:
    _, _, loop, _ = halves(trace)
    assert len(loop) == length
    assert sum(isinstance(action, Submit) for action in loop) == arrive


def test_the_starved_request_waits_behind_one_that_no_pool_can_help() -> None:
    """LIV-1 under VLLM_0_33, in a pool that has room for the longest text."""
    machine, state, _, starved = halves("LIV-1.jsonl")
    config = machine.config
    first, second = state.live
    assert second.id == starved
    assert len(first.prompt) == config.max_model_len > config.max_num_batched_tokens
    assert config.blocks_for(config.max_model_len) <= config.num_blocks - 1
    assert fills_the_model(machine, first)
    assert fits_alone(machine, second)


def test_the_livelock_is_two_that_give_way_in_turn() -> None:
    """r0 has three tokens of four and r1 one; four blocks are held. r0 wants the fourth token, is
    as bad as r1 and first in the list, gives way to itself, and loses its three."""
    machine, state, loop, _ = halves("LIV-1-livelock.jsonl")
    gave_way: list[str] = []
    computed: list[dict[str, int]] = []
    for action in loop:
        moved = machine.apply(state, action)
        gave_way += [e.id for e in moved.events if isinstance(e, Preempted)]
        assert not any(isinstance(e, Delivered) for e in moved.events)
        state = moved.state
        if isinstance(action, Complete):
            computed.append({r.id: r.computed for r in state.live})
    assert gave_way == ["r0", "r1"]
    assert computed == [
        {"r0": 3, "r1": 1},
        {"r1": 2, "r0": 0},
        {"r1": 3, "r0": 1},
        {"r0": 2, "r1": 0},
    ]


# --- what is told of them ------------------------------------------------------------------


def documented() -> str:
    return "\n".join(path.read_text() for path in sorted(DOCS.glob("search*.md")))


@pytest.mark.parametrize("name", ["LIV-1-livelock", "LIV-1-passed-over"])
def test_the_loop_is_drawn_as_it_goes(name: str) -> None:
    machine, _, loop, _ = halves(f"{name}.jsonl")
    actions = read_trace(FALLS / f"{name}.jsonl").actions
    assert lap(machine, actions[: len(actions) - len(loop)], loop) in documented()


@pytest.mark.parametrize("name", LIVENESS)
def test_what_is_told_of_a_fall_is_what_the_search_says(name: str) -> None:
    (fall,) = (fall for fall in KNOWN_FALLS if fall.name == name)
    found, strict = liveness(fall.system, fits=Fits.TAGGED), liveness(fall.system)
    assert found.lasso is not None
    served = "others" if found.lasso.arrivals else "nobody"
    told = (
        f"| `{name}` | {found.found.states:,} | {found.starving} "
        f"| {len(found.lasso.stem)} + {len(found.lasso.loop)} | {served} | {strict.verdict} |"
    )
    assert told in documented().splitlines()


def test_a_table_of_a_run_shows_each_action() -> None:
    machine = Machine(Config(3, 1, 3, 1, 2), VLLM_0_33)
    stem = (Submit("a", (0,), 2), Submit("b", (1,), 1), Schedule())
    assert lap(machine, stem, (Complete((Output("a", (5,)),)), Schedule())).splitlines()[2:] == [
        "|  | submit a: 0, writes 2 | – | – | a |",
        "|  | submit b: 1, writes 1 | – | – | a b |",
        "|  | schedule | a admitted; a +1; b passed over: no tokens | a 1 of 1, 1 | b |",
        "| ↻ | complete | a gets 5 | a 1 of 2, 1 | b |",
        "| ↻ | schedule | a +1; b passed over: no tokens | a 2 of 2, 1 2 | b |",
    ]
