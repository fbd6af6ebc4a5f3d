"""Walks for the driver: the specification and the fast engine side by side, all properties asked.

What `servecheck fuzz` does in one long run, in pieces that are cheap enough to be the first thing
that a mutant is shown. pytest does not collect this file by itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve

from servecheck.engines.fast.refine import Refinement
from servecheck.fuzz.wander import Wanderer
from servecheck.lockstep.subject import Subject, parted
from servecheck.trace.read import read_trace
from servecheck.trace.replay import replay_trace
from servespec.config import Config
from servespec.policy import VLLM_0_33, Lookup
from servespec.properties import PROPERTIES

ROOT = Path(__file__).resolve().parents[2]
KEPT = sorted((ROOT / "traces").glob("zoo/*.jsonl"))
ENGINE = Subject(Refinement)


@pytest.mark.parametrize("part", range(6))
def test_the_engine_does_what_kept_programs_do(part: int) -> None:
    for file in KEPT[part::6]:
        trace = read_trace(file)
        assert parted(ENGINE, trace.machine, trace.actions) is None


@pytest.mark.parametrize("part", range(6))
def test_kept_programs_do_what_they_did(part: int) -> None:
    for file in KEPT[part::6]:
        assert replay_trace(read_trace(file)).agrees


@pytest.mark.parametrize("seed", range(10))
def test_short_walks_agree(seed: int) -> None:
    for walk in range(5):
        Wanderer(1000 + 5 * seed + walk, (), following=Refinement).go(30)


@pytest.mark.parametrize("seed", range(8))
def test_longer_walks_agree_and_nothing_falls(seed: int) -> None:
    Wanderer(seed, PROPERTIES.values(), following=Refinement).go(100)


ROOMY = (Config(64, 8, 64, 64, 6), Config(40, 2, 24, 30, 6), Config(24, 1, 12, 12, 4))
"""Long texts, whose names part, grow, are copied and let go."""


@pytest.mark.parametrize("lookup", Lookup)
@pytest.mark.parametrize("seed", range(8))
def test_walks_agree_where_there_is_room(seed: int, lookup: Lookup) -> None:
    policy = evolve(VLLM_0_33, lookup=lookup)
    for sizes in ROOMY:
        Wanderer(2000 + seed, (), sizes, policy, Refinement).go(50)
