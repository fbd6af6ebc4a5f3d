"""Stories about fuzzing: the specification holds under it, it gets everywhere, and what is broken
is found, and shown on few actions.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import count

import pytest
from attrs import evolve
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from servecheck.cli import fuzz
from servecheck.cli.terminal import Exit
from servecheck.fuzz.campaign import NAMED, Summary, Verdict, campaign
from servecheck.fuzz.draw import Seeded, draw_world
from servecheck.fuzz.machine import Tally, machine_class
from servecheck.fuzz.moves import MOVES
from servecheck.fuzz.shrink import shrunk
from servecheck.fuzz.tell import PropertyFell, tell_config, tell_policy, tell_program
from servecheck.fuzz.walk import Walk
from servecheck.fuzz.wander import Wanderer
from servecheck.marks import Mark
from servespec import pool as blocks
from servespec.actions import Abort, Action, Complete, Output, ResetCache, Schedule, Submit
from servespec.chain import Namespace
from servespec.config import Config
from servespec.machine import Machine
from servespec.policy import (
    MINIATURE,
    RESERVED,
    STATIC,
    VLLM_0_33,
    Admission,
    AfterPreemption,
    FreeWalk,
    HeadOfLine,
    Order,
    Policy,
    Publish,
    Release,
    StepMix,
    Victim,
    prioritised,
)
from servespec.pool import Blocks, Moved, Pool
from servespec.properties import PROPERTIES

# --- The specification holds ----------------------------------------------------------------------

BUDGET = settings(
    # As many as the profile of the search says; a run is some 55 steps.
    max_examples=settings.default.max_examples * 2,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink),
)

TestAnyPolicy = machine_class().TestCase
TestAnyPolicy.settings = BUDGET


@pytest.mark.parametrize("name", NAMED)
def test_no_property_falls_under_a_profile(name: str) -> None:
    tally = Tally()
    run_state_machine_as_test(
        machine_class(policy=NAMED[name], tally=tally),
        settings=settings(BUDGET, max_examples=settings.default.max_examples // 4),
    )
    assert {policy for _, policy in tally.worlds} == {NAMED[name]}
    assert tally.checked["OWN-1"] == tally.steps
