"""Streams to serve: the benchmark's own, and Mooncake's conversations."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from servecheck.engines.fast.engine import FastEngine
from servecheck.engines.fast.refine import Refinement
from servecheck.watch import Watch
from servecheck.workload.mooncake import Conversation, MooncakeError, read, shrunk
from servecheck.workload.zipf import Served, Shape, stream
from servespec.actions import Action, Complete, Output, Schedule, Submit
from servespec.config import Config
from servespec.machine import Machine
from servespec.policy import VLLM_0_33
from servespec.properties import step_of

ROOT = Path(__file__).resolve().parents[1]
SIZES = Config(400, 16, 8192, 512, 16)


def conversations() -> Path:
    """Where Mooncake's first 6,000 conversations are; skips if they are nowhere."""
    named = os.environ.get("SERVECHECK_MOONCAKE")
    beside = ROOT.parent / "shared/traces/workloads/mooncake_conversation_l00001-06000.jsonl"
    place = Path(named) if named else beside
    if not place.is_file():
        pytest.skip("no Mooncake trace: set SERVECHECK_MOONCAKE to conversation_trace.jsonl")
    return place


def test_the_stream_is_a_function_of_its_seed() -> None:
    small = Shape(requests=5, families=2, prompt=(8, 16), prefix=(4, 6), output=3, vocabulary=9)
    assert stream(small, seed=1) == stream(small, seed=1)
    assert stream(small, seed=1) != stream(small, seed=2)
    assert [len(r.output) for r in stream(small)] == [3] * 5


def test_the_benchmark_s_stream() -> None:
    requests = stream()
    assert len(requests) == 2000
    assert sum(len(r.prompt) for r in requests) == 2_541_560


def test_a_conversation_shrinks_and_shares_what_it_shared() -> None:
    """512 tokens become 16; the second prompt begins with the first block of the first one."""
    one = shrunk(Conversation(0, 1000, 64, (0, 7)), "one")
    two = shrunk(Conversation(5, 512, 8, (0,)), "two")
    assert len(one.prompt) == 32
    assert one.prompt[:16] == two.prompt == tuple(range(16))
    assert len(one.output) == 2
    assert len(two.output) == 1


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "no JSON"),
        ("[]", "no object"),
        ('{"timestamp":0,"input_length":1,"output_length":1}', "not all there"),
        ('{"timestamp":0,"input_length":1,"output_length":-1,"hash_ids":[0]}', "not all there"),
        ('{"timestamp":0,"input_length":513,"output_length":1,"hash_ids":[0]}', "1 ids for 513"),
    ],
)
def test_a_line_of_another_format_is_named(line: str, what: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(line + "\n", encoding="utf-8")
    with pytest.raises(MooncakeError, match=what):
        list(read(file))


def test_all_6000_conversations_through_the_engine() -> None:
    """All arrive at once; every block comes back."""
    engine = FastEngine(SIZES, VLLM_0_33, tells=False)
    rest: dict[str, list[int]] = {}
    for number, line in enumerate(read(conversations())):
        served = shrunk(line, f"r{number}")
        rest[served.id] = list(served.output)
        engine.submit(Submit(served.id, served.prompt, len(served.output)))
    assert len(rest) == 6000
    while engine.requests:
        plan = engine.schedule()
        engine.take_in([(rest[e.request.id].pop(),) if e.yields else () for e in plan.entries])
        engine.log.clear()
    assert engine.pool.free == 399
    assert not any(rest.values())


def test_conversations_in_lockstep_with_all_properties() -> None:
    """The first ones through the specification and the fast engine side by side; all of 200 where
    SERVECHECK_SLOW is set."""
    count = 200 if os.environ.get("SERVECHECK_SLOW") else 40
    machine = Machine(SIZES, VLLM_0_33)
    state = machine.initial()
    watch, engines = Watch(machine, state), Refinement(machine)
    for action in _served(machine, [shrunk(c, f"r{i}") for i, c in enumerate(_first(count))]):
        moved = machine.apply(state, action)
        assert watch.see(state, action, moved) == ()
        engines.follow(step_of(machine, state, action, moved))
        state = moved.state
    assert not state.live
    assert watch.checked["CON-1"] > count


def _first(count: int) -> Iterator[Conversation]:
    return read(conversations(), count)


def _served(machine: Machine, requests: list[Served]) -> Iterator[Action]:
    """The actions that serve a list of requests, all of which arrive at once."""
    rest = {r.id: list(r.output) for r in requests}
    state = machine.initial()
    waiting: list[Action] = [Submit(r.id, r.prompt, len(r.output)) for r in requests]
    for action in waiting:
        state = machine.apply(state, action).state
        yield action
    while state.live:
        state = machine.apply(state, Schedule()).state
        yield Schedule()
        entries = state.in_flight[0].entries
        done = Complete(tuple(Output(e.id, (rest[e.id].pop(),)) for e in entries if e.yields))
        state = machine.apply(state, done).state
        yield done
