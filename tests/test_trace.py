"""Stories about traces: what is written can be read, what is edited is noticed, what is long is
made short."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import get_args

import orjson
import pytest
from attrs import evolve

from servecheck.recording.digest import content_name, hex_hash
from servecheck.trace.find import find
from servecheck.trace.machines import shrink_world
from servecheck.trace.model import (
    TracedEvent,
    TraceError,
    Verdict,
)
from servecheck.trace.observe import observe
from servecheck.trace.read import listed, read_trace
from servecheck.trace.replay import replay_trace
from servecheck.trace.shrink import falls, mend, shrink
from servecheck.trace.simpler import size_of
from servecheck.trace.write import TraceWriter, keep, packages, record
from servespec.actions import Abort, Action, Complete, Discard, Output, ResetCache, Schedule, Submit
from servespec.chain import PUBLIC, Namespace, chain
from servespec.config import Config
from servespec.events import Reason
from servespec.machine import Machine
from servespec.policy import MINIATURE, NAMED, VLLM_0_33, Publish, Readmission, StepMix

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
    assert told == set(get_args(TracedEvent))
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
    """What a reader in another language finds, and how it comes to the same digest."""
    waiting = {"id": "a", "computed": 0, "length": 3, "table": [], "published": 0}
    seen = {
        "free": [1, 2, 3, 4, 5, 6],
        "ref_counts": [0] * 7,
        "keys": [None] * 7,
        "index": [],
        "requests": [waiting | {"drafts": [], "output": []}],
        "running": [],
        "waiting": ["a"],
        "in_flight": [],
    }
    canonical = json.dumps(seen, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    digest = sha256(canonical.encode()).hexdigest()[:16]
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
        "digest": digest,
    }
    key = content_name(chain(Namespace("adapter", "salt"), ((1, 2),)))
    assert last["events"] == [
        {"type": "Delivered", "id": "a", "first_position": 0, "tokens": [4]},
        {"type": "BlockStored", "block": 2, "key": key, "parent": None},
    ]


@pytest.mark.parametrize("name", NAMED)
def test_a_profile_is_named_and_written_whole(path: Path, name: str) -> None:
    for policy, said in (
        (NAMED[name], name),
        (evolve(NAMED[name], readmission=Readmission.TAIL), None),
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


HOSTILE = (
    "",
    "\0\r\n\t\x1b[2J",
    "\"\\'",
    "\u2028\u202e\ufeff",
    "\U0001f600",
    "type",
    "r" * 100_000,
)


def test_hostile_names_survive(path: Path) -> None:
    actions: list[Action] = [Submit(n, (1, 2, 3), 1, Namespace(n, n)) for n in HOSTILE]
    actions += [Schedule(), Abort(HOSTILE[1]), Abort("\0")]
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
from typing import get_args
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


# --- Failing runs kept ----------------------------------------------------------------------------

FELL = Verdict("falls", "LOCKSTEP", "the engine differs")


def test_two_programs_in_one_folder_are_two_files(tmp_path: Path) -> None:
    one = keep(tmp_path, "LOCKSTEP-fast", TINY, STORY, FELL, seed=1)
    other = keep(tmp_path, "LOCKSTEP-fast", TINY, STORY[:6], FELL, seed=2)
    assert sorted(tmp_path.iterdir()) == sorted((one, other))
    assert (read_trace(one).actions, read_trace(other).actions) == (STORY, STORY[:6])


def test_the_last_run_on_which_a_program_falls_is_kept(tmp_path: Path) -> None:
    one = keep(tmp_path, "LOCKSTEP-fast", TINY, STORY, FELL, seed=1)
    assert keep(tmp_path, "LOCKSTEP-fast", TINY, STORY, FELL, seed=2) == one
    assert list(tmp_path.iterdir()) == [one]
    assert read_trace(one).header.seed == 2


def test_searches_that_keep_at_once_do_not_mix(tmp_path: Path) -> None:
    """Given four processes that keep two programs each, again and again; then there are two files,
    and both are whole."""
    program = f"""
from pathlib import Path
from tests.test_trace import FELL, STORY, TINY
from servecheck.trace.write import keep
for turn in range(30):
    keep(Path({str(tmp_path)!r}), "LOCKSTEP-fast", TINY, STORY[:6 + 12 * (turn % 2)], FELL)
"""
    root = FALLS.parents[1]
    paths = os.pathsep.join(map(str, (root, root / "spec", root / "impl")))
    environment = {**os.environ, "PYTHONPATH": paths}
    started = [subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in range(4)]
    assert [process.wait() for process in started] == [0] * 4
    kept = sorted((read_trace(path).actions for path in tmp_path.iterdir()), key=len)
    assert kept == [STORY[:6], STORY]


def test_a_program_that_the_machine_does_not_do_is_kept_as_far_as_it_goes(tmp_path: Path) -> None:
    path = keep(tmp_path, "APPLY-2-spec", TINY, (*STORY[:2], Schedule()), FELL)
    trace = read_trace(path)
    assert (trace.actions, trace.verdict) == (STORY[:2], None)


def test_what_cannot_be_kept_leaves_nothing_behind(tmp_path: Path) -> None:
    with small_disk(900), pytest.raises(TraceError) as caught:
        keep(tmp_path, "LOCKSTEP-fast", TINY, STORY, FELL)
    assert caught.value.file.parent == tmp_path
    assert caught.value.file.name.startswith("LOCKSTEP-fast-")
    assert "File too large" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


# --- Read strictly --------------------------------------------------------------------------------

SMALL: tuple[Action, ...] = (
    Submit("a", (1, 2), 2),
    Schedule(),
    Complete((Output("a", (3,)),)),
    Abort("a"),
)
SMALL_MACHINE = Machine(Config(4, 2, 4, 4, 2), VLLM_0_33)
MENDED = "mend it, or record the run again"
GONE = "there is no such field; take it out"
ADDED = "missing; add it, or record the run again"
NUMBERED = "put the lines in order, none missing"
NO_BLOCKS = "expected a whole number ≥ 1, found 0"
NULL_BLOCK = "1 is the null block alone: nothing can be handed out; set another num_blocks"


@pytest.fixture
def small(path: Path) -> Path:
    record(path, SMALL_MACHINE, SMALL, Verdict("holds"), snapshot_every=4)
    return path


def test_the_small_trace_is_read(small: Path) -> None:
    trace = read_trace(small)
    assert trace.actions == SMALL
    assert replay_trace(trace).agrees


WHOLE = "expected a whole number of at most 64 bits, found"
FORM = 'field format: this is no trace; its first line must say "servecheck-trace"'
VERSION = "this reads version 1: read it by the servecheck that wrote it"
ALONE = "name the property that fell, and only that"
END = '{"verdict":"holds"}'
ACTIONS = ", ".join(f'"{kind.__name__}"' for kind in get_args(Action))
EVENTS = ", ".join(f'"{kind.__name__}"' for kind in get_args(TracedEvent))
REASONS = ", ".join(f'"{reason.name}"' for reason in Reason)
VERDICTS = '"holds", "falls", "undetermined"'
KEY = content_name(chain(PUBLIC, ((1, 2),)))

REFUSED = [
    # the first line
    (1, '{"format', '"format', "not JSON from column 9 on"),
    (1, "-trace", "-trice", FORM),
    (1, '"format":"servecheck-trace",', "", FORM),
    (1, '"version":1', '"version":2', f"field version: version 2 is not known; {VERSION}"),
    (1, '"version":1', '"version":true', f"field version: version True is not known; {VERSION}"),
    (1, '"engine"', '"motor"', f"field motor: {GONE}"),
    (1, '"seed":null,', '"seed":"7",', f'field seed: {WHOLE} "7"'),
    (1, '"engine":"spec",', "", f"field engine: {ADDED}"),
    (1, '"num_blocks":4,', "", f"field config.num_blocks: {ADDED}"),
    (1, '"num_blocks":4', '"num_blocks":4.0', f"field config.num_blocks: {WHOLE} 4.0"),
    (1, '"num_blocks":4', '"num_blocks":true', f"field config.num_blocks: {WHOLE} true"),
    (1, '"num_blocks":4', '"num_blocks":0', f"field config.num_blocks: {NO_BLOCKS}"),
    (1, '"num_blocks":4', '"num_blocks":1', f"field config.num_blocks: {NULL_BLOCK}"),
    (
        1,
        '"watermark":0.0',
        '"watermark":"0"',
        'field config.watermark: expected a number, found "0"',
    ),
    (1, '_block":true', '_block":1', "field policy.null_block: expected true or false, found 1"),
    (1, "fcfs", "lifo", 'field policy.order: expected one of "fcfs", "priority", found "lifo"'),
    (1, '"order":"fcfs",', "", f"field policy.order: {ADDED}"),
    # actions
    (2, '"n":0,', '"n":0,"m":0,', f"field m: {GONE}"),
    (2, '"n":0,', '"n":0,"n":0,', 'key "n" stands twice; keep one of the two'),
    (2, '"n":0,', "", f"field n: {ADDED}"),
    (3, '"n":1,', '"n":0,', f"field n: expected 1, found 0; {NUMBERED}"),
    (3, '"n":1,', '"n":2,', f"field n: expected 1, found 2; {NUMBERED}"),
    (2, '"Submit"', '"submit"', f'field action.type: expected one of {ACTIONS}, found "submit"'),
    (2, '"Submit"', '"os.kill"', f'field action.type: expected one of {ACTIONS}, found "os.kill"'),
    (3, '"type":"Schedule"', "", f"field action.type: {ADDED}"),
    (2, '"id":"a"', '"id":1', "field action.id: expected a string, found 1"),
    (2, "[1,2]", "[1,true]", f"field action.prompt[1]: {WHOLE} true"),
    (2, "[1,2]", "[1,2.5]", f"field action.prompt[1]: {WHOLE} 2.5"),
    (2, "[1,2]", "[1,-2]", "field action.prompt[1]: expected a whole number ≥ 0, found -2"),
    (
        2,
        '"max_tokens":2',
        '"max_tokens":0',
        "field action.max_tokens: expected a whole number ≥ 1, found 0",
    ),
    (
        3,
        '"new_blocks":[1]',
        '"new_blocks":[-1]',
        "field events[1].new_blocks[0]: expected a whole number ≥ 0, found -1",
    ),
    (2, "[1,2]", "{}", "field action.prompt: expected a list, found {}"),
    (2, "[1,2]", "[]", "field action.prompt: expected a list of at least 1, found []"),
    (2, "[1,2]", "[1,NaN]", "not JSON from column 55 on"),
    (
        2,
        '"namespace":{}',
        '"namespace":null',
        "field action.namespace: expected an object, found null",
    ),
    (4, '"outputs":[{', '"outputs":[{"":0,', f'field action.outputs[0]."": {GONE}'),
    # events, digests, snapshots
    (2, '"Submitted"', '"Sent"', f'field events[0].type: expected one of {EVENTS}, found "Sent"'),
    (3, KEY, KEY[1:], f'field events[2].key: expected 64 hex digits, found "{KEY[1:39]}…'),
    (
        3,
        KEY,
        KEY.upper(),
        f'field events[2].key: expected 64 hex digits, found "{KEY.upper()[:38]}…',
    ),
    (5, '"ABORT"', '"abort"', f'field events[0].reason: expected one of {REASONS}, found "abort"'),
    (4, '"digest":"', '"digest":0,"":"', "field digest: expected 16 hex digits, found 0"),
    (5, '"free":[', '"free":["1",', f'field state.free[0]: {WHOLE} "1"'),
    # the verdict, and lines as such
    (
        6,
        "holds",
        "fine",
        'field verdict: expected one of "holds", "falls", "undetermined", found "fine"',
    ),
    (6, "holds", "falls", f"field property: which property fell is not said; {ALONE}"),
    (6, '"}', '","property":"X"}', f"field property: a property is named, and none fell; {ALONE}"),
    (6, END, "{}", f"field n: {ADDED}"),
    (6, END, "[]", "expected an object, found []"),
    (6, END, "", "not JSON from column 1 on"),
    (6, END, "[" * 500 + "]" * 500, "nested too deep"),
    (5, "", f"{END}\n", "a line stands behind the verdict; take it out"),
]


@pytest.mark.parametrize(("line", "old", "new", "said"), REFUSED)
def test_a_line_is_taken_whole_or_refused(
    small: Path, line: int, old: str, new: str, said: str
) -> None:
    found = complaint(edited(small, line, old, new))
    number, _, rest = found.replace(", field", ": field", 1).partition(": ")
    assert rest == (said if ";" in said else f"{said}; {MENDED}")
    assert int(number) == line + (old == "")


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (f"[1,{2**64}]", f"2, field action.prompt[1]: {WHOLE} 1.8"),
        ("[" * 5000 + "]" * 5000, "2: not JSON from column "),
    ],
    ids=["number", "depth"],
)
def test_what_is_too_large_is_refused(small: Path, new: str, said: str) -> None:
    assert complaint(edited(small, 2, "[1,2]", new)).startswith(said)


def test_a_cut_line_is_refused_and_the_lines_before_it_are_good(small: Path) -> None:
    small.write_bytes(small.read_bytes()[:-9])
    assert complaint(small) == (
        "6: the line is cut; take a whole copy of it, or keep its first 5 lines"
    )
    small.write_text("".join(f"{line}\n" for line in texts(small)[:5]))
    assert read_trace(small).actions == SMALL


def test_what_is_advised_of_a_cut_trace_leaves_something(small: Path) -> None:
    first, second, *_ = texts(small)
    small.write_text(first)
    assert complaint(small) == (
        "1: the line is cut; take a whole copy of it, or record the run again"
    )
    small.write_text(f"{first}\n{second}")
    assert complaint(small) == (
        "2: the line is cut; take a whole copy of it, or keep its first line"
    )


def test_only_files_are_listed_and_the_rest_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Given two files in a folder, a link to one, a pipe, a socket, a folder and a link to nothing,
    all called like traces; then the files and the link are listed by name, and the rest is told."""
    for name in ("b", "a", "other"):
        (tmp_path / f"{name}.{'txt' if name == 'other' else 'jsonl'}").write_text("")
    (tmp_path / "c.jsonl").symlink_to("a.jsonl")
    os.mkfifo(tmp_path / "d.jsonl")
    (tmp_path / "e.jsonl").mkdir()
    (tmp_path / "f.jsonl").symlink_to("nowhere")
    monkeypatch.chdir(tmp_path)  # the whole path may be longer than a socket's may be
    with socket.socket(socket.AF_UNIX) as heard:
        heard.bind("g.jsonl")
    files, useless = listed(tmp_path, "*.jsonl")
    assert [file.name for file in files] == ["a.jsonl", "b.jsonl", "c.jsonl"]
    assert useless == tuple(
        f"{tmp_path / name}.jsonl: is no regular file; take it out of the folder" for name in "defg"
    )


def test_what_is_taken_away_meanwhile_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a folder from which another run takes a file while it is listed; then it is not
    told."""
    (tmp_path / "a.jsonl").write_text("", encoding="utf-8")
    monkeypatch.setattr(os, "listdir", lambda folder: ["a.jsonl", "gone.jsonl"])
    assert listed(tmp_path, "*.jsonl") == ((tmp_path / "a.jsonl",), ())


def test_a_folder_that_cannot_be_listed_is_told_and_one_that_is_not_there_is_empty(
    tmp_path: Path,
) -> None:
    """A loop of links stands for one that may not be looked into: that, root may always."""
    assert listed(tmp_path / "nowhere", "*") == ((), ())
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    files, (useless,) = listed(loop, "*")
    assert files == ()
    assert useless.startswith(f"{loop}: cannot be listed (")
    assert useless.endswith("); name a folder that can be read")


def test_what_is_no_trace_at_all(path: Path, tmp_path: Path) -> None:
    readable = "give a path to a trace that can be read"
    assert complaint(path) == f" cannot be read (No such file or directory); {readable}"
    assert complaint(tmp_path) == f" cannot be read (Is a directory); {readable}"
    path.write_bytes(b"")
    assert complaint(path) == " the file is empty; record the run again"
    path.write_bytes(b"\x80\x04\x95.\n")
    assert complaint(path) == f"1: not JSON from column 1 on; {MENDED}"
    path.write_bytes(b"\n")
    assert complaint(path) == f"1: not JSON from column 1 on; {MENDED}"


# --- Replayed -------------------------------------------------------------------------------------


def told(path: Path) -> list[tuple[int, str]]:
    """The lines and fields in which a replay differs."""
    return [(found.line, found.field) for found in replay_trace(read_trace(path)).differences]


@pytest.mark.parametrize(
    ("line", "old", "new", "fields"),
    [
        (4, '"tokens":[3]', '"tokens":[0]', ["events", "digest"]),  # what was sampled
        (3, '"hit_tokens":0', '"hit_tokens":2', ["events"]),
        (3, '"new_blocks":[1]', '"new_blocks":[2]', ["events"]),
        (4, '"digest":"', '"digest":"00000000', ["digest"]),
        (5, '"free":[', '"free":[0,', ["state.free"]),
        (5, '"ref_counts":[0,0', '"ref_counts":[0,1', ["state.ref_counts"]),
    ],
)
def test_a_hand_edited_line_is_noticed_there(
    small: Path, line: int, old: str, new: str, fields: list[str]
) -> None:
    if old == '"digest":"':
        digest = read_trace(small).lines[line - 2].digest
        old, new = digest, "0" * 16
    found = told(edited(small, line, old, new))
    assert [where for where in found if where[0] == line] == [(line, field) for field in fields]
    assert min(found)[0] == line


def test_the_next_snapshot_names_the_fields(small: Path) -> None:
    """The digest of the submit says that something differs; what, is seen three actions later."""
    edited(small, 2, '"id":"a"', '"id":"b"')
    edited(small, 5, '"type":"Abort","id":"a"', '"type":"Abort","id":"c"')
    edited(small, 4, '"outputs":[{"id":"a"', '"outputs":[{"id":"b"')
    report = replay_trace(read_trace(small))
    assert report.agreed == 0
    assert [(d.line, d.field) for d in report.differences] == [
        (2, "events"),
        (2, "digest"),
        (5, "state.free"),
        (5, "state.ref_counts"),
        (5, "state.requests"),
        (5, "state.running"),
    ]
    ids = report.differences[-1]
    assert (ids.recorded, ids.specified) == ((), ("b",))


def test_an_action_that_is_not_offered_is_noticed(small: Path) -> None:
    lines = texts(small)
    del lines[2]
    lines[2:4] = [lines[2].replace('"n":2', '"n":1'), lines[3].replace('"n":3', '"n":2')]
    small.write_text("\n".join((*lines, "")))
    report = replay_trace(read_trace(small))
    assert (report.actions, report.agreed, report.reproduced) == (3, 1, False)
    (found,) = report.differences
    assert (found.line, found.field, found.recorded) == (3, "action", SMALL[2])
    assert found.specified == "Complete: no plan is in flight; schedule first"


@pytest.mark.parametrize(
    ("verdict", "reproduced"),
    [
        (None, None),
        (Verdict("undetermined", what="interrupted"), None),
        (Verdict("holds"), True),  # CON-1 and CON-3 are known to fall there
        (Verdict("falls", "CON-1", "…"), True),
        (Verdict("falls", "CON-3", "…"), True),
        (Verdict("falls", "CON-1r", "…"), False),
        (Verdict("falls", "EVI-1", "…"), False),
        (Verdict("falls", "NOBODY-KNOWS-IT", "…"), None),
    ],
)
def test_a_verdict_is_reproduced_or_not(
    path: Path, verdict: Verdict | None, reproduced: bool | None
) -> None:
    known = read_trace(FALLS / "CON-1.jsonl")
    record(path, known.machine, known.actions, verdict)
    report = replay_trace(read_trace(path))
    assert (report.recorded, report.reproduced) == (verdict, reproduced)
    assert report.agrees
    assert report.checked["CON-1"] > 0


def test_who_does_not_watch_does_not_know(small: Path) -> None:
    report = replay_trace(read_trace(small), watch=False)
    assert report.agrees
    assert report.reproduced is None
    assert not report.checked


# --- Shrunk ---------------------------------------------------------------------------------------

CON_1 = read_trace(FALLS / "CON-1.jsonl")


def noise(machine: Machine, count: int) -> tuple[Action, ...]:
    """A long run in which nothing falls, after which nobody is left and nothing cached."""
    actions: list[Action] = []
    for n in range(count // 5):
        name = f"noise-{n}"
        prompt = tuple((n + i) % 3 + 5 for i in range(1 + n % 3))
        actions += [Submit(name, prompt, 1 + n % 2), Schedule(), Complete()]
        actions += [Abort(name), ResetCache()]
    return mend(machine, actions)


def test_a_long_run_is_shrunk_to_the_few_that_matter() -> None:
    machine = CON_1.machine
    fails = falls(machine, "CON-1")
    before, after = noise(machine, 2000), noise(machine, 200)
    assert not fails(before)
    odd = [
        evolve(action, id=f"{action.id} the odd", prompt=tuple(t + 70 for t in action.prompt))
        if isinstance(action, Submit)
        else action
        for action in CON_1.actions
    ]
    padded = (*before, *mend(machine, odd), *after)
    assert fails(padded)
    found = shrink(machine, padded, fails)
    assert size_of(found) <= size_of(CON_1.actions)
    assert fails(found)
    assert mend(machine, found) == found  # all of it is legal


@pytest.mark.parametrize("seed", range(3))
def test_nothing_that_is_left_can_go(seed: int) -> None:
    machine = CON_1.machine
    fails = falls(machine, "CON-3")
    found = find("CON-3", machine, seed)
    assert found is not None
    least = shrink(machine, found, fails)
    assert fails(least)
    for at in range(len(least)):
        assert not fails(mend(machine, least[:at] + least[at + 1 :]))
    assert not fails(least[:-1])  # and it falls on its last action


def test_what_does_not_fail_is_left_alone() -> None:
    assert shrink(TINY, STORY, falls(TINY, "CON-1")) == STORY


def test_any_question_can_be_asked() -> None:
    """Two requests have ended, however."""

    def two_ended(actions: Sequence[Action]) -> bool:
        state, ended = TINY.initial(), 0
        for action in actions:
            moved = TINY.apply(state, action)
            ended += sum(type(event).__name__ == "Finished" for event in moved.events)
            state = moved.state
        return ended >= 2

    assert shrink(TINY, STORY, two_ended) == (
        Submit("r0", (0,), 1),
        Submit("r1", (0,), 1),
        Schedule(),
        Complete((Output("r0", (0,)), Output("r1", (0,)))),
    )


def test_what_is_left_out_is_mended() -> None:
    """Without the first pass: its outcome goes, and the next one is adapted to its plan, which now
    takes up the whole prompt, and has other drafts."""
    assert mend(TINY, (*STORY[:1], *STORY[4:9])) == (
        Submit("a", (1, 2, 3), 4, Namespace("adapter", "salt"), -1, (9,)),
        Submit("b", (1, 2, 3, 4, 5), 1, with_last=True),
        Schedule(),
        ResetCache(),
        Complete((Output("a", (5,)),)),
    )


def test_what_is_not_offered_is_left_out() -> None:
    actions = (Complete(), Discard(), Schedule(), Schedule(), Discard(), Discard(), *STORY[:1] * 2)
    assert mend(TINY, actions) == (Schedule(), Discard(), STORY[0])
    assert mend(SMALL_MACHINE, (Schedule(), Discard())) == (Schedule(),)


def test_the_machine_is_shrunk_too() -> None:
    """Two requests, of whom the second comes late, under far too large a machine."""
    wide = Machine(
        Config(30, 4, 20, 16, 8, watermark=0.1, num_speculative_tokens=2),
        evolve(VLLM_0_33, step_mix=StepMix.PREFILL_FIRST),
    )
    actions = (
        Submit("a", (1, 2, 3), 4),
        Schedule(),
        Complete((Output("a", (4,)),)),
        Submit("b", (1, 2, 3), 4),
        Schedule(),
    )
    machine, least = shrink_world(wide, actions, lambda machine: falls(machine, "BUD-2"))
    assert machine.config == Config(3, 1, 3, 1, 2)
    assert machine.policy == wide.policy
    assert least == (
        Submit("r0", (0,), 2),
        Submit("r1", (0,), 1),
        Schedule(),
        Complete((Output("r0", (0,)),)),
        Schedule(),
    )


# --- Found ----------------------------------------------------------------------------------------


def test_a_search_is_a_function_of_its_seed() -> None:
    machine = Machine(Config(6, 2, 12, 8, 3), MINIATURE)
    found = find("EVI-1", machine, 1)
    program = """
from servecheck.trace.find import find
from servespec.config import Config
from servespec.machine import Machine
from servespec.policy import MINIATURE
print(repr(find("EVI-1", Machine(Config(6, 2, 12, 8, 3), MINIATURE), 1)))
"""
    root = FALLS.parents[1]
    paths = os.pathsep.join(map(str, (root, root / "spec", root / "impl")))
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "5"}
    other = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == repr(found)
    assert find("EVI-1", machine, 2) != found


def test_what_does_not_fall_is_not_found() -> None:
    assert find("OWN-1", TINY, 0, runs=3) is None
