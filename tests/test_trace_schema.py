"""The JSON Schema of traces and the strict reader say the same: every trace that is committed or
can be written passes both, and what the schema refuses the reader refuses, with an address.

What the schema lets pass and the reader does not is a short list (`READER_ALONE`), and there is a
story for each.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from servecheck.cli import main
from servecheck.fuzz.wander import Wanderer
from servecheck.trace.model import FORMAT, TraceError, Verdict
from servecheck.trace.read import read_trace
from servecheck.trace.schema import READER_ALONE, trace_schema
from servecheck.trace.write import record
from servespec.actions import Action, Complete, Discard, Output, Schedule, Submit
from servespec.config import Config
from servespec.machine import Machine
from servespec.policy import VLLM_0_33, Publish
from tests.test_trace import STORY, TINY

TRACES = Path(__file__).resolve().parents[1] / "traces"
VALIDATOR = Draft202012Validator(trace_schema())

Line = dict[str, object]


def accepted(line: object) -> bool:
    """By the schema."""
    found: bool = VALIDATOR.is_valid(line)
    return found


def is_trace(path: Path) -> bool:
    with path.open(encoding="utf-8") as file:
        return FORMAT in file.readline()


COMMITTED = sorted(path for path in TRACES.rglob("*.jsonl") if is_trace(path))


def lines_of(path: Path) -> list[Line]:
    return [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]


# --- what passes ----------------------------------------------------------------------------


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(trace_schema())


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--schema"]) == 0
    assert capsys.readouterr().out == (TRACES / "trace.schema.json").read_text(encoding="utf-8")
    assert main(["replay", "--schema", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == trace_schema()
    assert main(["replay", "--schema", "x.jsonl"]) == 2
    assert "--schema goes alone" in capsys.readouterr().err


def test_there_are_committed_traces() -> None:
    assert {path.parent.name for path in COMMITTED} >= {"falls", "golden"}


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_committed_trace_passes(path: Path) -> None:
    for line in lines_of(path):
        VALIDATOR.validate(line)


def test_every_action_and_every_event_passes(tmp_path: Path) -> None:
    path = tmp_path / "story.jsonl"
    record(path, TINY, STORY, Verdict("undetermined", None, "…"), seed=-7, snapshot_every=1)
    for line in lines_of(path):
        VALIDATOR.validate(line)


def test_padded_drafts_pass(tmp_path: Path) -> None:
    """A first decode is padded with drafts of -1, and a snapshot shows them."""
    machine = Machine(
        Config(7, 2, 10, 7, 2, num_speculative_tokens=2),
        evolve(VLLM_0_33, publish=Publish.AFTER_STEP),
    )
    story: list[Action] = [Submit("a", (1, 2), 4), Schedule(), Complete((Output("a", (3,)),))]
    path = tmp_path / "padded.jsonl"
    record(path, machine, [*story, Schedule(), Discard()], snapshot_every=1)
    for line in lines_of(path):
        VALIDATOR.validate(line)
    read_trace(path)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), every=st.sampled_from((1, 3, 50)))
def test_every_trace_that_is_generated_passes_both(
    tmp_path_factory: pytest.TempPathFactory, seed: int, every: int
) -> None:
    walk = Wanderer(seed, ()).go(15)
    path = tmp_path_factory.mktemp("walk") / "walk.jsonl"
    record(path, walk.machine, walk.actions, seed=seed, snapshot_every=every)
    for line in lines_of(path):
        VALIDATOR.validate(line)
    assert read_trace(path).actions == tuple(walk.actions)


# --- what neither takes ---------------------------------------------------------------------

Place = tuple[str | int, ...]


def places(value: object, here: Place = ()) -> Iterator[tuple[Place, object]]:
    """Every value inside a line, with the way to it."""
    yield here, value
    if isinstance(value, dict):
        for name, item in value.items():
            yield from places(item, (*here, name))
    elif isinstance(value, list):
        # Of a list of numbers the ends; of others all.
        ends = {0, len(value) - 1}
        for at, item in enumerate(value):
            if at in ends or not isinstance(item, int):
                yield from places(item, (*here, at))


def put(line: object, place: Place, new: object) -> object:
    """The line with another value in one place."""
    if not place:
        return new
    step, *rest = place
    if isinstance(line, dict):
        return {k: put(v, tuple(rest), new) if k == step else v for k, v in line.items()}
    assert isinstance(line, list)
    return [put(v, tuple(rest), new) if at == step else v for at, v in enumerate(line)]


WRONG: dict[str, tuple[object, ...]] = {
    "a text": ("", "spec", "0" * 16),
    "a number": (-1, 0, 2**64 - 1),
    "a fraction": (0.5, 1e300),
    "another kind": (None, True, [], {"type": "Schedule"}),
}
"""What is put in the place of every value."""


def mutants(line: object) -> Iterator[tuple[str, object]]:
    """A line, wrong in one place: each is told by a kind of fault."""
    for place, value in places(line):
        for kind, others in WRONG.items():
            for other in others:
                yield kind, put(line, place, other)
        match value:
            case dict():
                for name in value:
                    rest = {k: v for k, v in value.items() if k != name}
                    yield "a field removed", put(line, place, rest)
                    renamed = {(f"{k}_" if k == name else k): v for k, v in value.items()}
                    yield "a field renamed", put(line, place, renamed)
                yield "a field added", put(line, place, {**value, "extra": 0})
                yield "a type added", put(line, place, {**value, "type": "Abort"})
            case str():
                for other in (value.swapcase(), value[1:], f"{value}\n"):
                    yield "another text", put(line, place, other)
            case [first, *_]:
                yield "an item of another kind", put(line, place, [*value, {"extra": first}])


def read_back(tmp_path: Path, before: list[str], line: object) -> str | None:
    """What the reader says of a line behind others; None: it takes it."""
    path = tmp_path / "mutant.jsonl"
    text = json.dumps(line, separators=(",", ":"), ensure_ascii=False)
    path.write_text("".join(f"{t}\n" for t in (*before, text)), encoding="utf-8")
    try:
        read_trace(path)
    except TraceError as error:
        return f"{error.line}: {error.field}: {error.what}"
    return None


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A trace that has every action and event, snapshots with all in them, and a verdict."""
    path = tmp_path_factory.mktemp("story") / "story.jsonl"
    record(path, TINY, STORY, Verdict("falls", "CON-1", "…"), seed=7, snapshot_every=5)
    return path.read_text(encoding="utf-8").splitlines()


def test_schema_and_reader_agree_on_lines_that_are_wrong_in_one_place(
    story: list[str], tmp_path: Path
) -> None:
    """Whatever the schema refuses, the reader refuses, naming the line. Whatever the reader alone
    refuses is a contradiction of sizes, an order of lines, or an end that is no end."""
    refused: Counter[str] = Counter()
    passed: Counter[str] = Counter()
    alone: Counter[str] = Counter()
    seen: set[str] = set()
    for number in (0, 1, 5, 10, len(story) - 1):
        before = story[:number]
        for kind, line in mutants(json.loads(story[number])):
            text = json.dumps(line)
            if text in seen:
                continue
            seen.add(text)
            said = read_back(tmp_path, before, line)
            if not accepted(line):
                assert said is not None, (kind, line)
                assert said.startswith(f"{number + 1}: ")
                refused[kind] += 1
            elif said is None:
                passed[kind] += 1
            else:
                alone[why_alone(said)] += 1
    kinds = {kind for kind, _ in mutants({"a": ["b"]})}
    assert set(refused) == kinds
    assert sum(refused.values()) > 1500
    assert sum(passed.values()) > 100
    assert set(alone) == {"contradiction", "order", "line feed"}


def why_alone(said: str) -> str:
    """Which of the few faults that only the reader sees this is."""
    _, field, what = said.split(": ", 2)
    if field == "n" and what.startswith("expected "):
        return "order"
    if field == "format" or what == "a line stands behind the verdict":
        return "order"
    if "hex digits" in what:
        return "line feed"
    if field.startswith(("config", "policy")):
        return "contradiction"
    raise AssertionError(said)


# --- what the reader alone sees -------------------------------------------------------------

ALONE: tuple[Callable[[list[str]], list[str]], ...] = (
    lambda t: [t[0], t[1].replace('"n":0', '"n":0,"n":0')],
    lambda t: [t[0], t[1].replace('"n":0', '"n":0.0')],
    lambda t: [t[0], t[1].replace('","state', '\\n","state').replace('"}\n', '\\n"}\n')],
    lambda t: [t[0].replace('"max_num_batched_tokens":7', '"max_num_batched_tokens":1')],
    lambda t: [t[0], t[2]],
    lambda t: [t[0], t[1][:-9]],
)
"""One of each, in the order of `READER_ALONE`."""


@pytest.mark.parametrize("at", range(len(READER_ALONE)))
def test_what_the_reader_alone_sees(story: list[str], tmp_path: Path, at: int) -> None:
    whole = [f"{text}\n" for text in story]
    wrong = ALONE[at](whole)
    assert wrong != whole[: len(wrong)]
    path = tmp_path / "wrong.jsonl"
    path.write_text("".join(wrong), encoding="utf-8")
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert caught.value.line == len(wrong)
    if at < len(READER_ALONE) - 1:  # the last is no JSON
        assert all(accepted(json.loads(text)) for text in wrong)


def test_each_is_told_in_the_schema() -> None:
    assert len(ALONE) == len(READER_ALONE)
    assert all(said in str(trace_schema()["description"]) for said in READER_ALONE)
