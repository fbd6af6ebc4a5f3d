"""Shrink a fall that Hypothesis did not shrink: fewer actions, and a policy nearer to a profile.

Theory of operation. The program is shrunk by `servecheck.trace.shrink`, which drops actions and
mends what follows. Then each choice of the policy is put back to what it is in the profile next to
it, as long as the property goes on falling where it is not known to fall, so that what is left says
on which choices the fall depends; then the program is shrunk once more. The result is a function of
the fall.

A divergence is shrunk in the same way with a new engine beside each candidate, and the sizes too
(`shrunk_divergence`); how many candidates are tried is limited, as an engine may be slow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import fields

from servecheck.engines.protocol import EngineError
from servecheck.fuzz.tell import PropertyFell, fell
from servecheck.lockstep.follow import ANSWER
from servecheck.lockstep.subject import Parted, Subject, parted
from servecheck.tell import NAMED, nearest
from servecheck.trace.shrink import StillFails, mend, shrink, shrink_world
from servecheck.watch import Watch
from servespec.actions import Action
from servespec.config import Config
from servespec.errors import SpecError
from servespec.machine import Machine
from servespec.policy import Policy
from servespec.properties import PROPERTIES

WITH: Callable[..., Policy] = Policy

CANDIDATES = 5_000
"""Programs that are tried to make a divergence smaller."""


def shrunk(fall: PropertyFell) -> PropertyFell:
    """The smallest fall of the same property that is found; `fall` itself if its actions alone do
    not bring it about again."""
    if fallen(fall.config, fall.policy, fall.actions, fall.property_id) is None:
        return fall
    return _fewer_actions(_nearer(_fewer_actions(fall)))


def fallen(
    config: Config, policy: Policy, actions: Sequence[Action], property_id: str
) -> PropertyFell | None:
    """The fall of a property on a program, if it falls, and is not known to."""
    asked = PROPERTIES.get(property_id)
    if asked is None:
        return None
    machine = Machine(config, policy)
    state = machine.initial()
    watch = Watch(machine, state, (asked,))
    for count, action in enumerate(actions, 1):
        try:
            moved = machine.apply(state, action)
        except SpecError:
            return None
        for fall in watch.see(state, action, moved):
            if fall.known:
                continue
            done = tuple(actions[:count])
            return fell(property_id)(property_id, asked.statement, fall.what, config, policy, done)
        state = moved.state
    return None


def _fewer_actions(fall: PropertyFell) -> PropertyFell:
    def still(actions: Sequence[Action]) -> bool:
        return fallen(fall.config, fall.policy, actions, fall.property_id) is not None

    machine = Machine(fall.config, fall.policy)
    fewer = shrink(machine, fall.actions, still)
    return fallen(fall.config, fall.policy, fewer, fall.property_id) or fall


def _nearer(fall: PropertyFell) -> PropertyFell:
    """The fall under a policy that differs from the profile next to it in no axis needlessly."""
    best, base = fall, NAMED[nearest(fall.policy)]
    for axis in fields(Policy):
        mine = {other.name: getattr(best.policy, other.name) for other in fields(Policy)}
        candidate = WITH(**{**mine, axis.name: getattr(base, axis.name)})
        try:
            machine = Machine(fall.config, candidate)
        except SpecError:
            continue
        actions = mend(machine, best.actions)
        best = fallen(fall.config, candidate, actions, fall.property_id) or best
    return best


# --- divergences ---------------------------------------------------------------------------


def shrunk_divergence(subject: Subject, found: Parted, candidates: int = CANDIDATES) -> Parted:
    """The smallest divergence found; an error of the engine stays one, a difference too."""
    kind = _kind(found)
    left = candidates

    def parts(machine: Machine, actions: Sequence[Action]) -> Parted | None:
        nonlocal left
        left -= 1
        if left < 0:
            return None
        try:
            other = parted(subject, machine, actions)
        except (EngineError, SpecError):
            return None
        return other if other is not None and _kind(other) == kind else None

    def fails(machine: Machine) -> StillFails:
        return lambda actions: parts(machine, actions) is not None

    machine, actions = shrink_world(found.machine, found.actions, fails)
    for policy in NAMED.values():
        try:
            other = Machine(machine.config, policy)
        except SpecError:
            continue
        mended = mend(other, actions)
        if parts(other, mended) is not None:
            machine, actions = other, mended
            break
    base = NAMED[nearest(machine.policy)]
    for axis in fields(Policy):
        mine = {other.name: getattr(machine.policy, other.name) for other in fields(Policy)}
        try:
            other = Machine(machine.config, WITH(**{**mine, axis.name: getattr(base, axis.name)}))
        except SpecError:
            continue
        mended = mend(other, actions)
        if other.policy != machine.policy and parts(other, mended) is not None:
            machine, actions = other, mended
    machine, actions = shrink_world(machine, actions, fails)
    left = 1
    return parts(machine, actions) or found


def _kind(found: Parted) -> bool:
    """Whether the engine raised."""
    return found.divergence.differences[0].field == ANSWER
