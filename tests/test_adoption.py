"""Stories about known deviations: the engine's state is adopted, and the run goes on."""

from __future__ import annotations

import pytest

from servecheck.engines.fast.adapters import FastLoop
from servecheck.fuzz.wander import Wanderer
from servecheck.lockstep.adopt import Shown, adopted
from servecheck.lockstep.follow import EngineFollower, follower
from servespec.actions import Action
from servespec.machine import Machine
from servespec.plan import State
from servespec.properties import PROPERTIES, Step


class Adopting:
    """The fast engine, whose state is adopted after every action though it does not deviate."""

    def __init__(self, machine: Machine) -> None:
        self.inner: EngineFollower = follower(FastLoop(machine.config, machine.policy), machine)
        self.adopted = 0

    def allows(self, machine: Machine, state: State, action: Action) -> bool:
        return True

    def follow(self, step: Step) -> None:
        self.inner.follow(step)
        seen = Shown(self.inner.comparison.last_plan, self.inner.engine.see_state())
        self.adopted += 1
        names = self.inner.comparison.names
        assert adopted(step, seen, names) == step.after


@pytest.mark.parametrize("block", range(4))
def test_what_is_adopted_from_a_sound_engine_is_the_machines_own_state(block: int) -> None:
    """Given walks through all kinds of sizes and choices; when the state of an engine that does not
    deviate is adopted, then it is the machine's, hidden fields and content included."""
    steps = 0
    for seed in range(100 * block, 100 * block + 100):
        wanderer = Wanderer(seed, tuple(PROPERTIES.values()), following=Adopting)
        wanderer.go(25)
        steps += len(wanderer.walk.actions)
    assert steps > 2000
