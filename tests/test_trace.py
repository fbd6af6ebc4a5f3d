"""Stories about traces: what is written can be read, what is edited is noticed, what is long is
made short, and the falls that the project knows of go on falling."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest
from attrs import evolve

from servecheck.recording.digest import content_name, hex_hash
from servecheck.trace.find import TARGETS, Target, find, smallest
from servecheck.trace.lasso import WATCHED
from servecheck.trace.model import (
    BlockRemoved,
    BlockStored,
    Line,
    Trace,
    TracedEvent,
    TraceError,
    Verdict,
)
from servecheck.trace.observe import observe
from servecheck.trace.read import read_trace
from servecheck.trace.replay import replay_trace
from servecheck.trace.shrink import falls, mend, shrink, shrink_world
from servecheck.trace.simpler import size_of
from servecheck.trace.write import TraceWriter, packages, record
from servespec.actions import Abort, Action, Complete, Discard, Output, ResetCache, Schedule, Submit
from servespec.chain import PUBLIC, Namespace, chain
from servespec.config import Config
from servespec.machine import Machine, fits_alone
from servespec.policy import MINIATURE, PROFILES, STATIC, VLLM_0_33, Publish, StepMix, prioritised
from servespec.properties import PROPERTIES

FALLS = Path(__file__).resolve().parents[1] / "traces" / "falls"

TINY = Machine(
    Config(7, 2, 10, 7, 2, num_speculative_tokens=1),
    evolve(VLLM_0_33, publish=Publish.AFTER_STEP),
)
"""Six blocks of two tokens, drafts, and steps that may be discarded."""

STORY: tuple[Action, ...] = (
    Submit("a", (1, 2, 3), 4, Namespace("adapter", "salt"), -1, (9,)),
    Schedule(),
    Discard(),
    Schedule(),
    Complete((Output("a", (4,), (5,)),)),
    Submit("b", (1, 2, 3, 4, 5), 1, with_last=True),
    Schedule(),
    ResetCache(),
    Complete((Output("a", (5, 9)), Output("b", (7,)))),
    Submit("c", (1, 2, 3, 4, 5, 6), 1),
    Schedule(),
    Abort("c"),
    Complete(),
    Submit("d", (6,) * 9, 1),
    Submit("e", (6,), 1),
    Schedule(),
    Complete(),
    ResetCache(preempt_running=True),
)
"""Every action, and every event."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


def texts(path: Path) -> list[str]:
    return path.read_text().splitlines()


def edited(path: Path, number: int, old: str, new: str) -> Path:
    """The file with `old` replaced by `new` on one line, counted from 1."""
    lines = texts(path)
    assert old in lines[number - 1]
    lines[number - 1] = lines[number - 1].replace(old, new, 1)
    path.write_text("\n".join((*lines, "")))
    return path


def complaint(path: Path) -> str:
    """What reading the file raises, without the name of the file."""
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert caught.value.file == path
    said = str(caught.value)
    assert "\n" not in said
    return said.removeprefix(str(path)).removeprefix(":")


# --- There and back -------------------------------------------------------------------------------


def test_what_is_written_is_read(path: Path) -> None:
    record(path, TINY, STORY, Verdict("holds", None, "1 run"), seed=7, snapshot_every=5)
    trace = read_trace(path)
    assert trace.machine == TINY
    assert trace.actions == STORY
    assert trace.verdict == Verdict("holds", None, "1 run")
    header = trace.header
    assert (header.engine, header.seed, header.packages) == ("spec", 7, packages())
    assert header.profile is None
    assert [line.n for line in trace.lines if line.state] == [4, 9, 14]
    told = {type(event) for line in trace.lines for event in line.events}
    assert told == set(TracedEvent.__args__)
    report = replay_trace(trace)
    assert report.agrees
    assert report.agreed == report.actions == len(STORY)
    assert report.reproduced


def test_a_snapshot_is_the_state(path: Path) -> None:
    record(path, TINY, STORY, snapshot_every=1)
    state = TINY.initial()
    for line in read_trace(path).lines:
        state = TINY.apply(state, line.action).state
        assert line.state == observe(state)


def test_a_line_is_written_by_value_and_by_name(path: Path) -> None:
    """What a reader in another language finds."""
    record(path, TINY, STORY[:5])
    header, first, *_, last = map(orjson.loads, texts(path))
    assert header["policy"]["free_walk"] == "tail_first"
    assert header["config"]["num_speculative_tokens"] == 1
    assert first == {
        "n": 0,
        "action": {
            "type": "Submit",
            "id": "a",
            "prompt": [1, 2, 3],
            "max_tokens": 4,
            "namespace": {"adapter": "adapter", "salt": "salt"},
            "priority": -1,
            "stop": [9],
            "with_last": False,
        },
        "events": [{"type": "Submitted", "id": "a"}],
        "digest": "%A%",
    }
    key = content_name(chain(Namespace("adapter", "salt"), ((1, 2),)))
    assert last["events"] == [
        {"type": "Delivered", "id": "a", "first_position": 0, "tokens": [4]},
        {"type": "BlockStored", "block": 1, "key": key, "parent": None},
    ]


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_is_named_and_written_whole(path: Path, name: str) -> None:
    for policy, said in (
        (PROFILES[name], name),
        (prioritised(PROFILES[name]), f"prioritised({name})"),
    ):
        record(path, Machine(Config(4, 2, 4, 4, 2), policy), [Schedule()])
        trace = read_trace(path)
        assert (trace.header.profile, trace.header.policy) == (said, policy)


def test_a_name_of_content_is_the_engines_where_it_has_one() -> None:
    link = chain(Namespace(salt="b"), ((1, 0, 1, 0), (2, 0, 0, 2)))
    assert content_name(link) == hex_hash(link)


def test_names_of_content_are_told_apart_by_adapter_salt_and_tokens() -> None:
    parts = (None, "", "a", "b", "ab")
    spaces = [Namespace(adapter, salt) for adapter in parts for salt in parts]
    texts = [((1, 2), (3,)), ((1,), (2, 3)), ((1, 2, 3),), ((1, 2),)]
    names = {content_name(chain(space, text)) for space in spaces for text in texts}
    assert len(names) == len(spaces) * len(texts)


HOSTILE = ("", "\0\r\n\t\x1b[2J", "\"\\'", "\u2028\u202e\ufeff", "\U0001f600", "type", "r" * 100_000)


def test_hostile_names_survive(path: Path) -> None:
    actions = [
        Submit(name, (1, 2, 3), 1, Namespace(name, name)) for name in HOSTILE
    ] + [Schedule(), Abort("\x00"), Abort(HOSTILE[1])]
    record(path, TINY, actions, Verdict("falls", HOSTILE[1], HOSTILE[2]))
    trace = read_trace(path)
    assert trace.actions == tuple(actions)
    assert trace.verdict == Verdict("falls", HOSTILE[1], HOSTILE[2])
    assert path.read_bytes().count(b"\n") == len(actions) + 2
    assert replay_trace(trace).agrees


@pytest.mark.parametrize(
    ("action", "where"),
    [
        (Submit("\ud800", (1,), 1), "action.id"),
        (Submit("a", (1, 2), 1, Namespace(adapter="\udfff")), "action.namespace.adapter"),
        (Submit("a", (1, 2), 1, Namespace(salt="x\ud800")), "action.namespace.salt"),
        (Submit("a", (1, 2**64), 1), "action.prompt[1]"),
        (Abort("\ud800"), "action.id"),
    ],
)
def test_what_no_json_can_hold_is_refused_and_ends_the_trace(
    path: Path, action: Action, where: str
) -> None:
    with TraceWriter(path, TINY) as writer:
        state = TINY.initial()
        writer.action(Schedule(), moved := TINY.apply(state, Schedule()))
        with pytest.raises(TraceError) as caught:
            writer.action(action, TINY.apply(moved.state, action))
        assert (caught.value.line, caught.value.field) == (3, where)
        with pytest.raises(TraceError, match="the trace is finished; begin another"):
            writer.action(Schedule(), moved)
    assert read_trace(path).actions == (Schedule(),)


# --- As it happens --------------------------------------------------------------------------------


def test_after_each_action_the_file_is_a_trace(path: Path) -> None:
    writer = TraceWriter(path, TINY)
    assert read_trace(path).lines == ()
    state = TINY.initial()
    for count, action in enumerate(STORY, 1):
        moved = TINY.apply(state, action)
        writer.action(action, moved)
        trace = read_trace(path)
        assert (trace.actions, trace.verdict) == (STORY[:count], None)
        state = moved.state
    writer.close()


def test_a_run_that_dies_leaves_what_was_known(path: Path) -> None:
    def doomed() -> Iterator[Action]:
        yield from STORY[:6]
        raise RuntimeError("died")

    with pytest.raises(RuntimeError, match="died"):
        record(path, TINY, doomed(), Verdict("holds"))
    trace = read_trace(path)
    assert (trace.actions, trace.verdict) == (STORY[:6], None)
    assert replay_trace(trace).agrees


def test_a_process_that_is_killed_leaves_what_was_known(path: Path) -> None:
    program = f"""
import os
from pathlib import Path
from servecheck.trace.write import record
from servespec.actions import Schedule
from tests.test_trace import STORY, TINY
def actions():
    yield from STORY[:6]
    os.kill(os.getpid(), 9)
record(Path({str(path)!r}), TINY, actions())
"""
    root = FALLS.parents[1]
    paths = os.pathsep.join(map(str, (root, root / "spec", root / "impl")))
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": paths})
    assert read_trace(path).actions == STORY[:6]


@contextmanager
def small_disk(size: int) -> Iterator[None]:
    """No file may grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_said_and_leaves_whole_lines(path: Path) -> None:
    record(path, TINY, STORY)
    whole = path.read_bytes()
    with small_disk(len(whole) - 100), pytest.raises(TraceError) as caught:
        record(path, TINY, STORY)
    kept = read_trace(path)
    assert kept.actions == STORY[: len(kept.lines)]
    assert len(STORY) - 2 <= len(kept.lines) < len(STORY)
    line = len(kept.lines) + 2
    assert str(caught.value) == (
        f"{path}:{line}: cannot be written (File too large); "
        "free some space there, or name another file"
    )


def test_a_trace_that_cannot_be_begun_is_said(tmp_path: Path) -> None:
    for path, why in (
        (tmp_path, "Is a directory"),
        (tmp_path / "\0", "embedded null byte"),
    ):
        with pytest.raises(TraceError, match=rf"cannot be written \({why}\)"):
            TraceWriter(path, TINY)


def test_nothing_stands_behind_a_verdict(path: Path) -> None:
    with TraceWriter(path, TINY) as writer:
        writer.verdict(Verdict("undetermined", what="interrupted"))
        with pytest.raises(TraceError, match=":3: the trace is finished"):
            writer.verdict(Verdict("holds"))
    assert read_trace(path).verdict == Verdict("undetermined", what="interrupted")
