"""What a campaign starts from: the engine that goes along, the worlds, and where chance begins.

Theory of operation. A profile and sizes that are given limit the worlds; an engine is asked which
of them it takes. What cannot be is refused before anything is searched.
"""

from __future__ import annotations

from attrs import frozen

from servecheck.engines.protocol import EngineFactory
from servecheck.fuzz.sizes import HARMLESS, Sizes, resized
from servecheck.fuzz.worlds import Draw, Worlds, anywhere
from servecheck.lockstep.subject import Subject
from servespec.config import check
from servespec.errors import ConfigError
from servespec.policy import NAMED, Policy

STEPS_PER_RUN = 40
"""Moves of a run; a move is one action or some."""
STRIDE = 1_000_003
"""Seeds of a campaign lie so far from those of the next."""


@frozen
class Outset:
    """Where a campaign starts."""

    subject: Subject | None
    draw: Draw
    policy: Policy | None
    """The one that is given."""


def outset(
    profile: str | None, sizes: Sizes | None, following: EngineFactory | Subject | None
) -> Outset:
    """Ask the engine which worlds it takes, as far as they are not given.

    Raises:
        ConfigError: there is no such profile, or the sizes contradict it.
        Unsupported: the engine takes none of the worlds.
        EngineError: the engine is not what it says it is, or cannot be started.
    """
    if profile is not None and profile not in NAMED:
        raise ConfigError("profile", f"{profile!r} is unknown", f"take one of {', '.join(NAMED)}")
    policy = None if profile is None else NAMED[profile]
    subject = as_subject(following)
    if policy is not None:
        check(resized(HARMLESS, policy, sizes or {}), policy)
    draw: Draw = anywhere(policy=policy, sizes=sizes)
    if subject is not None:
        draw = Worlds.of(subject, policy=policy, sizes=sizes)
    return Outset(subject, draw, policy)


def as_subject(following: EngineFactory | Subject | None) -> Subject | None:
    """Engines of a factory, or those that are given."""
    if following is None or isinstance(following, Subject):
        return following
    return Subject.of(following)
