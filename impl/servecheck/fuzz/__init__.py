"""Fuzzing: random programs of actions, every property asked after each of them.

    from servecheck.fuzz import machine_for

    TestMyEngine = machine_for(MyEngine).TestCase

is a test of an engine for pytest or unittest: the specification beside it, in lockstep.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from servecheck.engines.protocol import EngineFactory
    from servecheck.fuzz.machine import ServingMachine
    from servespec.config import Config
    from servespec.policy import Policy

__all__ = ["machine_for"]


def machine_for(
    engine_factory: EngineFactory, config: Config | None = None, policy: Policy | None = None
) -> type[ServingMachine]:
    """A state machine class of Hypothesis over the specification and an engine beside it.

    Its `.TestCase` is a test. Sizes and choices are drawn among those that the engine takes, as far
    as they are not given. Hypothesis itself runs what fails again, and says if it was flaky.
    """
    # Hypothesis takes its time to import, and other modules here can do without.
    from servecheck.fuzz.machine import machine_class
    from servecheck.fuzz.worlds import worlds_of
    from servecheck.lockstep.subject import Subject

    subject = Subject.of(engine_factory)
    return machine_class(config, policy, following=subject, draw=worlds_of(subject, config, policy))
