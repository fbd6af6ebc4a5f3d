"""How fast a search is, without the imports: `make bench`. Counts are asserted."""

from __future__ import annotations

import pytest

from benchmarks.test_speed import Benchmark
from servecheck.explore.asking import Asking
from servecheck.explore.scopes import POOLS, PoolScope, ServingScope, named
from servecheck.explore.search import Found, search
from servecheck.explore.serving import Serving

SMALL, FULL = POOLS
(CHUNKS,) = named("serving-small/chunks")


def pool(scope: PoolScope) -> tuple[int, int]:
    found = search(scope.encoded())
    return found.states, found.transitions


@pytest.mark.parametrize("scope", [SMALL, FULL], ids=lambda scope: str(scope.name))
def test_the_tiny_pool(benchmark: Benchmark, scope: PoolScope) -> None:
    states, transitions = benchmark.pedantic(pool, (scope,), rounds=3, warmup_rounds=1)
    assert (states, transitions) == (scope.counts.states, scope.counts.transitions)


def serving(system: Serving) -> Found[bytes]:
    return search(system)


def test_the_serving_machine(benchmark: Benchmark) -> None:
    """Alone; the extra information says what a key of it weighs."""
    assert isinstance(CHUNKS, ServingScope)
    assert CHUNKS.counts is not None
    found = benchmark.pedantic(serving, (CHUNKS.system,), rounds=3)
    assert (found.states, found.transitions) == (CHUNKS.counts.states, CHUNKS.counts.transitions)
    weight = sum(map(len, found.graph.keys)) / found.states
    benchmark.extra_info["bytes in a key, mean"] = round(weight, 1)
    benchmark.extra_info["states"] = found.states


def asking(system: Serving) -> int:
    asked = Asking(system)
    return search(asked, asked).transitions


def test_the_serving_machine_with_all_properties(benchmark: Benchmark) -> None:
    (tiny,) = named("serving-tiny/chunks")
    assert isinstance(tiny, ServingScope)
    transitions = benchmark.pedantic(asking, (tiny.system,), rounds=3)
    benchmark.extra_info["transitions"] = transitions
    assert transitions > 6_000
