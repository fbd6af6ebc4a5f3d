"""How fast: `make bench`. Books are asserted, seconds are only measured."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Protocol, TypeVar

import pytest

from benchmarks.drivers import Arrival, Books, arrivals, keep_blocks, serve
from servecheck.engines.fast import FastEngine
from servecheck.engines.fast.adapters import FastLoop
from servecheck.fuzz.wander import Wanderer
from servecheck.lockstep.follow import follower
from servecheck.watch import Watch
from servecheck.workload.zipf import stream
from servespec.actions import Submit
from servespec.config import Config
from servespec.machine import Machine, Schedule
from servespec.policy import VLLM_0_33
from servespec.properties import PROPERTIES, step_of

T = TypeVar("T")


class Benchmark(Protocol):
    """What these tests use of pytest-benchmark, which has no types."""

    extra_info: dict[str, object]

    def pedantic(
        self,
        target: Callable[..., T],
        args: tuple[object, ...] = (),
        *,
        rounds: int,
        warmup_rounds: int = 0,
    ) -> T: ...


@pytest.fixture(scope="module")
def requests() -> tuple[Arrival, ...]:
    return arrivals(stream())


def test_block_bookkeeping(benchmark: Benchmark, requests: tuple[Arrival, ...]) -> None:
    books = benchmark.pedantic(keep_blocks, (requests,), rounds=5, warmup_rounds=1)
    assert books == Books(2000, 0.4735, 82_551)


def test_whole_engine(benchmark: Benchmark, requests: tuple[Arrival, ...]) -> None:
    books = benchmark.pedantic(serve, (requests,), rounds=5, warmup_rounds=1)
    assert books == Books(2000, 0.4735, 82_394)


def test_a_prompt_of_131072_tokens(benchmark: Benchmark) -> None:
    prompt = tuple(i % 50_000 for i in range(131_072))
    sizes = Config(8300, 16, 140_000, 140_000, 4)

    def go() -> None:
        engine = FastEngine(sizes, VLLM_0_33)
        engine.submit(Submit("long", prompt, 1))
        engine.schedule()
        engine.take_in([(7,)])

    benchmark.pedantic(go, rounds=5, warmup_rounds=1)


def test_the_specification_with_all_properties(benchmark: Benchmark) -> None:
    """Walks of 60 moves over all policies: transitions, every property asked after each."""

    def go() -> int:
        return sum(len(Wanderer(s, PROPERTIES.values()).go(60).actions) for s in range(40))

    benchmark.extra_info["transitions"] = benchmark.pedantic(go, rounds=3, warmup_rounds=1)


def test_the_specification_on_a_long_prompt(benchmark: Benchmark) -> None:
    machine = Machine(Config(8300, 16, 140_000, 140_000, 4), VLLM_0_33)
    prompt = tuple(i % 50_000 for i in range(131_072))

    def go() -> None:
        state = machine.apply(machine.initial(), Submit("long", prompt, 1)).state
        machine.apply(state, Schedule())

    benchmark.pedantic(go, rounds=3)


def test_lockstep_of_3000_actions_with_all_properties(benchmark: Benchmark) -> None:
    """The specification, every property, and the fast engine beside it; pools of 4 to 8 blocks."""
    programs = []
    for seed in count():
        walk = Wanderer(seed, ()).go(60)
        programs.append((walk.machine, tuple(walk.actions)))
        if sum(len(actions) for _, actions in programs) >= 3000:
            break

    def go() -> int:
        done = 0
        for machine, actions in programs:
            state = machine.initial()
            watch = Watch(machine, state)
            engine = follower(FastLoop(machine.config, machine.policy), machine)
            for action in actions:
                step = step_of(machine, state, action, machine.apply(state, action))
                watch.see_step(step)
                engine.follow(step)
                state = step.after
            done += engine.done
        return done

    assert benchmark.pedantic(go, rounds=5, warmup_rounds=1) >= 3000
