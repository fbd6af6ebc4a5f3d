"""Stories about replaying a trace on an engine: alone, against what was recorded, and beside the
specification."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from servecheck import __version__
from servecheck.cli import main
from servecheck.cli.terminal import Exit
from servecheck.engines.fast.adapters import FastCache, FastLoop
from servecheck.engines.protocol import Capabilities, EngineGone, Level, SeenPlan, Verb
from servecheck.engines.whole import FastWhole
from servecheck.fuzz.wander import Wanderer
from servecheck.lockstep.alone import Alone, Told, alone
from servecheck.lockstep.compare import Difference, said_plan
from servecheck.lockstep.subject import Subject
from servecheck.recording import read_recording
from servecheck.recording.replay import replay as replay_recording
from servecheck.recording.settings import config_of, policy_of
from servecheck.trace.model import Trace, Verdict
from servecheck.trace.read import read_trace
from servecheck.trace.replay import replay_trace
from servecheck.trace.write import record
from servecheck.zoo.document import RESULTS, rows_of
from servespec.actions import Abort, Action, Complete, Discard, Output, Schedule, Submit
from servespec.config import Config
from servespec.machine import Machine
from servespec.policy import VLLM_0_33
from tests.broken_engines import FAULTS, Faulty, HeadFirst, Mortal, Nobody, Picky, Whimsical, whole
from tests.recordings import prefix
from tests.test_trace import STORY, TINY

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "traces" / "golden" / "sharing.jsonl"
FALLS = sorted((ROOT / "traces" / "falls").glob("*.jsonl"))
MINE = "tests.broken_engines"
POOL = f"{sys.executable} {ROOT / 'examples' / 'pool_engine.py'}"


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))


def recorded(path: Path, machine: Machine, *actions: Action, every: int = 1) -> Trace:
    record(path, machine, actions, snapshot_every=every)
    return read_trace(path)


def walked(path: Path, seed: int, every: int) -> Trace:
    walk = Wanderer(seed, ()).go(40)
    return recorded(path, walk.machine, *walk.actions, every=every)


def on(engine: type[FastLoop], trace: Trace, level: Level | None = None) -> Alone:
    return alone(Subject.of(engine, level=level), trace)


SMALL = Machine(Config(4, 2, 4, 4, 2), VLLM_0_33)
ONE: tuple[Action, ...] = (Submit("a", (1, 2), 2), Schedule(), Complete((Output("a", (3,)),)))

ROOMY = Machine(Config(6, 2, 8, 8, 2), VLLM_0_33)
LONG: tuple[Action, ...] = (Submit("a", (1, 2, 3, 4), 1), *ONE[1:])
"""Two full blocks, and then nobody is left."""

# --- alone ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_an_engine_that_is_right_does_what_was_recorded(tmp_path: Path, seed: int) -> None:
    """At every level at which it can go alone, and as a whole."""
    trace = walked(tmp_path / "walk.jsonl", seed, every=7)
    for level in (Level.STEPS, Level.STATE):
        found = on(FastLoop, trace, level)
        assert (found.verdict, found.differences, found.stopped) == ("holds", (), None)
        assert found.agreed == found.actions
    report = replay_trace(trace, watch=False, make=FastWhole)
    assert report.agrees
    assert report.done == len(trace.lines)


@pytest.mark.parametrize("seed", range(40))
def test_what_a_trace_tells_of_a_plan_is_the_plan(tmp_path: Path, seed: int) -> None:
    """Folded from the events alone; what they do not tell is left open, never guessed."""
    trace = walked(tmp_path / "walk.jsonl", seed, every=50)
    told, state = Told(), trace.machine.initial()
    for line in trace.lines:
        moved = trace.machine.apply(state, line.action)
        if isinstance(line.action, Schedule):
            mine, right = told.plan(line), said_plan(moved.state.in_flight[-1], moved.events)
            assert mine.preempted == right.preempted
            for a, b in zip(mine.entries, right.entries, strict=True):
                assert (a.id, a.tokens) == (b.id, b.tokens)
                assert a.start in (b.start, -1)
                assert a.table in (b.table, None)
                assert a.drafts in (b.drafts, None)
        elif isinstance(line.action, Complete):
            told.outcome(line)
        elif isinstance(line.action, Discard):
            told.discard()
        told.leave(line)
        state = moved.state


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> list[Trace]:
    """What two recordings of a real scheduler ask for, as traces with every state."""

    def trace_of(name: str) -> Trace:
        actions: list[Action] = []
        run = read_recording(prefix(name))
        replay_recording(run, lambda _before, action, _moved: actions.append(action))
        machine = Machine(config_of(run.config), policy_of(run.config))
        return recorded(tmp_path_factory.mktemp(name) / "t.jsonl", machine, *actions)

    return [trace_of("spec_tight"), trace_of("toy_giveback")]


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.__name__ for fault in FAULTS])
def test_a_fault_shows_against_what_was_recorded(
    programs: list[Trace], fault: type[Faulty]
) -> None:
    """On an engine that is seen as a whole, and on one that shows plans and states."""
    reports = [replay_trace(trace, watch=False, make=whole(fault)) for trace in programs]
    differing = [report for report in reports if not report.agrees]
    assert differing
    assert all(report.differences[0].n == report.agreed for report in differing)
    assert "falls" in [on(fault, trace).verdict for trace in programs]


def test_the_first_action_that_differs_is_told(tmp_path: Path) -> None:
    """Given a table of two full blocks that comes back; the one that releases it from the other end
    shows that where there is a snapshot."""
    found = on(HeadFirst, recorded(tmp_path / "t.jsonl", ROOMY, *LONG))
    assert (found.verdict, found.agreed, found.actions) == ("falls", 2, 3)
    (difference,) = found.differences
    assert difference == Difference("free queue", (3, 4, 5, 2, 1), (3, 4, 5, 1, 2))


def test_it_is_held_against_the_trace_and_not_the_specification(tmp_path: Path) -> None:
    """A trace whose events were edited is right by definition: the engine that is right differs."""
    path = tmp_path / "t.jsonl"
    recorded(path, SMALL, *ONE)
    text = path.read_text(encoding="utf-8")
    assert '"tokens":2,"drafts":0,"new_blocks":[1]' in text
    path.write_text(text.replace('"tokens":2,"drafts":0', '"tokens":1,"drafts":0'))
    found = on(FastLoop, read_trace(path), Level.STEPS)
    assert (found.verdict, found.agreed) == ("falls", 1)
    assert [(d.field, d.expected, d.observed) for d in found.differences] == [
        ("plan of a: tokens", 1, 2)
    ]


def test_an_engine_that_raises_differs(tmp_path: Path) -> None:
    class Raises(FastLoop):
        def schedule(self) -> SeenPlan:
            raise ValueError("no blocks")

    found = on(Raises, recorded(tmp_path / "t.jsonl", SMALL, *ONE))
    (difference,) = found.differences
    assert (found.verdict, difference.field) == ("falls", "answer")
    assert difference.observed == "ValueError: no blocks"


class NoAborts(FastLoop):
    capabilities = Capabilities("calm", "1", Level.STATE, frozenset({Verb.ABORT_IN_FLIGHT}))


class Unwell(FastLoop):
    def submit(self, request: Submit) -> bool:
        raise EngineGone("out of order")


@pytest.mark.parametrize(
    ("engine", "actions", "agreed", "why"),
    [
        (Nobody, ONE, 0, "policy: there is none that I take"),
        (NoAborts, (*ONE[:2], Abort("a")), 2, "calm says that it cannot do this action"),
        (NoAborts, (ONE[0], Abort("a")), 2, None),
        (Unwell, ONE, 0, "it is gone: out of order"),
        (Mortal, (*ONE, Schedule()), 3, "it is gone: the lights went out"),
        (FastLoop, (), 0, None),
    ],
    ids=["world", "action", "an action that it can do", "gone", "gone later", "nothing compared"],
)
def test_what_cannot_be_checked_is_undetermined(
    tmp_path: Path,
    engine: type[FastLoop],
    actions: tuple[Action, ...],
    agreed: int,
    why: str | None,
) -> None:
    found = on(engine, recorded(tmp_path / "t.jsonl", SMALL, *actions))
    assert (found.agreed, found.stopped) == (agreed, why)
    assert found.verdict == ("undetermined" if why or not actions else "holds")


def test_a_pool_does_not_go_alone(tmp_path: Path) -> None:
    found = alone(Subject.of(FastCache), recorded(tmp_path / "t.jsonl", SMALL, *ONE))
    assert found.verdict == "undetermined"
    assert found.stopped is not None
    assert "does not schedule by itself" in found.stopped


def test_an_engine_that_does_not_do_the_same_twice(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "t.jsonl", ROOMY, *LONG)
    verdicts = {on(Whimsical, trace).verdict for _ in range(2)}
    assert "nondeterministic" in verdicts


# --- the command ----------------------------------------------------------------------------


def replay(*words: str | Path) -> int:
    return main(["replay", *map(str, words)])


@pytest.mark.parametrize("words", [(), ("--level", "steps"), ("--level", "state")], ids=str)
def test_the_fast_engine_alone_does_the_committed_traces(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(GOLDEN, *FALLS, "--engine", "fast", "--alone", *words) == Exit.HOLDS
    out = capsys.readouterr().out
    assert f"sharing.jsonl: fast {__version__} does 10 of 10 actions as recorded; " in out
    assert ("events and digest of the whole state" in out) == (words == ())


@pytest.mark.parametrize(
    "entry", ["hit-stays-free", "last-hit-not-held", "parents-first", "new-blocks-not-drained"]
)
def test_a_planted_fault_alone_is_seen_where_the_zoo_says_that_it_was_recorded(
    entry: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given faults that show in what the engine tells, or in its state between two snapshots; when
    an engine with one goes along a golden trace alone, then events and digests part, as they do in
    the zoo."""
    row = rows_of(RESULTS)[entry]
    assert row.golden is not None
    assert row.golden.by == "golden/sharing"
    words = ["replay", str(GOLDEN), "--engine", f"zoo:{entry}", "--alone", "--json"]
    assert main(words) == Exit.FALLS
    told = json.loads(capsys.readouterr().out)["traces"][0]
    assert told["engine"]["name"] == f"zoo:{entry}"
    assert told["agreed"] == row.golden.steps - 1


def test_who_names_the_engine_is_not_told_to_name_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given a trace on which an engine parted; when it is replayed along the specification alone,
    then that is said; with the engine beside it, it is not."""
    story = read_trace(ROOT / "traces" / "zoo" / "joined-up.jsonl")
    known = Verdict("falls", "LOCKSTEP", "it parted")
    record(tmp_path / "a.jsonl", story.machine, story.actions, known)
    assert main(["replay", "a.jsonl"]) == Exit.HOLDS
    assert "this is the specification alone" in capsys.readouterr().out
    assert main(["replay", "a.jsonl", "--engine", "zoo:joined-up"]) == Exit.FALLS
    assert "this is the specification alone" not in capsys.readouterr().out


def test_the_fast_engine_beside_the_specification(capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(GOLDEN, *FALLS, "--engine", "fast") == Exit.HOLDS
    out = capsys.readouterr().out
    assert "the recorded verdict, falls CON-1, comes out again" in out
    assert f"engine fast {__version__}, level state: 10 actions in lockstep, " in out


def test_a_process_goes_beside_and_not_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(GOLDEN, "--command", POOL) == Exit.HOLDS
    assert "level pool: 10 actions in lockstep" in capsys.readouterr().out
    assert replay(GOLDEN, "--command", POOL, "--alone") == Exit.UNDETERMINED
    assert "undetermined: at level pool" in capsys.readouterr().out


def test_an_engine_that_parts_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    engine = ("--engine", f"{MINE}:HeadFirst")
    assert replay(GOLDEN, *engine) == Exit.FALLS
    out = capsys.readouterr().out
    assert f"  diverges: fast {__version__}, after 3 actions\n" in out
    assert "\nexpected   free queue: " in out
    assert f"\nreplay     servecheck replay --engine {MINE}:HeadFirst {GOLDEN}\n" in out
    assert replay(GOLDEN, *engine, "--json") == Exit.FALLS
    told = json.loads(capsys.readouterr().out)
    assert (told["mode"], told["verdict"]) == ("lockstep", "falls")
    (trace,) = told["traces"]
    assert trace["differences"] == []
    assert (trace["lockstep"]["verdict"], trace["lockstep"]["fall"]) == ("diverges", "LOCKSTEP")
    assert trace["lockstep"]["report"][0] == "verdict    diverges"
    # The same is found where a search would run the program.
    assert main(["fuzz", *engine, "--program", str(GOLDEN)]) == Exit.FALLS
    out = capsys.readouterr().out
    assert f"replay     servecheck fuzz {' '.join(engine)} --program {GOLDEN}\n" in out


def test_an_engine_that_parts_from_what_was_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.jsonl"
    recorded(path, ROOMY, *LONG)
    engine = ("--engine", f"{MINE}:HeadFirst", "--alone")
    assert replay(path, *engine) == Exit.FALLS
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith(f"{path}: fast {__version__} does 2 of 3 actions as recorded; ")
    assert out[1] == "  action 2: complete: a → 3"
    assert out[2] == "  free queue"
    assert out[3].startswith("    recorded   ")
    assert out[4].startswith("    seen       ")
    assert replay(path, *engine, "--json") == Exit.FALLS
    (told,) = json.loads(capsys.readouterr().out)["traces"]
    assert (told["verdict"], told["agreed"]) == ("falls", 2)
    (difference,) = told["differences"]
    assert (difference["action"], difference["field"]) == (2, "free queue")
    assert sorted(difference["recorded"]) == sorted(difference["seen"]) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("mode", [(), ("--alone",)], ids=["lockstep", "alone"])
@pytest.mark.parametrize(
    ("engine", "what"),
    [
        ("Picky", "undetermined: num_blocks: at most 8, and this is 13"),
        ("Mortal", "the lights went out"),
    ],
)
def test_undetermined_is_exit_3(
    engine: str, what: str, mode: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    words = (str(GOLDEN), "--engine", f"{MINE}:{engine}", *mode)
    assert replay(*words) == Exit.UNDETERMINED
    assert what in capsys.readouterr().out
    assert replay(*words, "--json") == Exit.UNDETERMINED
    assert json.loads(capsys.readouterr().out)["verdict"] == "undetermined"


def test_an_action_that_the_engine_cannot_do_ends_the_lockstep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not left out: what comes behind it would be another program."""
    path = tmp_path / "t.jsonl"
    recorded(path, SMALL, *ONE[:2], Abort("a"), Complete())
    assert replay(path, "--engine", "tests.test_replay_modes:NoAborts") == Exit.UNDETERMINED
    out = capsys.readouterr().out
    assert "undetermined: the engine says that it cannot do action 2" in out


def test_what_fell_is_not_hidden_by_what_is_undetermined(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.jsonl"
    recorded(path, SMALL, *ONE)
    edited = path.read_text(encoding="utf-8").replace('"hit_tokens":0', '"hit_tokens":2')
    path.write_text(edited, encoding="utf-8")
    assert replay(GOLDEN, path, "--engine", f"{MINE}:Picky") == Exit.FALLS
    assert replay(path, "--engine", f"{MINE}:Mortal") == Exit.FALLS


def test_a_program_that_is_not_legal_is_no_fall_of_the_specification(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.jsonl"
    recorded(path, SMALL, *ONE)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    lines[2:] = [lines[3].replace('"n":2', '"n":1')]
    path.write_text("".join(lines), encoding="utf-8")
    assert main(["fuzz", "--program", str(path)]) == Exit.BAD_INPUT
    assert "Complete: no plan is in flight" in capsys.readouterr().err
    assert replay(path, "--engine", "fast", "--alone") == Exit.FALLS
    assert "line 3, action 1, action" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--alone",), "name it by --engine"),
        (("--level", "steps"), "name it by --engine"),
        (("--engine", "fast", "--command", "x"), "name two engines"),
        (("--engine", "slow"), "no such engine"),
        (("--engine", "fast", "--alone", "--deviations", "x"), "do not go with --alone"),
        (("--engine", f"{MINE}:Liar", "--alone"), "lacks methods"),
    ],
    ids=str,
)
def test_wrong_words_are_one_line(
    words: tuple[str, ...], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(GOLDEN, *words) == Exit.BAD_INPUT
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert what in err


def test_what_is_known_is_told_before_a_bad_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(GOLDEN, "none.jsonl", "--json") == Exit.BAD_INPUT
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "undetermined"
    assert "none.jsonl: cannot be read" in told["error"]
    assert [trace["verdict"] for trace in told["traces"]] == ["holds"]


def test_a_recording_on_the_fast_engine(capsys: pytest.CaptureFixture[str]) -> None:
    reset = ROOT / "traces" / "vllm-0.33.0" / "toy_reset"
    assert replay("--recording", reset, "--engine", "fast", "--alone", "--json") == Exit.HOLDS
    told = json.loads(capsys.readouterr().out)
    assert (told["engine"], told["verdict"]) == ("fast", "holds")
    assert replay("--recording", reset, "--engine", "fast") == Exit.BAD_INPUT
    assert "--engine fast --alone" in capsys.readouterr().err


def test_a_known_verdict_is_recorded_with_the_story(tmp_path: Path) -> None:
    """All that happens in a story, on an engine that shows plans, and on one that shows states."""
    path = tmp_path / "story.jsonl"
    record(path, TINY, STORY, Verdict("holds"), snapshot_every=1)
    for level in (Level.STEPS, Level.STATE):
        assert on(FastLoop, read_trace(path), level).verdict == "holds"
    assert on(Picky, read_trace(path)).verdict == "undetermined"
