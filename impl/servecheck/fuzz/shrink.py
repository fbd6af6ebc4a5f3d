"""Shrink a fall that Hypothesis did not shrink: fewer actions, and a policy nearer to a profile.

Theory of operation. The program is shrunk by `servecheck.trace.shrink`, which drops actions and
mends what follows. Then each choice of the policy is put back to what it is in the profile next to
it, as long as the property goes on falling where it is not known to fall, so that what is left says
on which choices the fall depends; then the program is shrunk once more. The result is a function of
the fall.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import fields

from servecheck.fuzz.tell import NAMED, PropertyFell, fell, nearest
from servecheck.trace.shrink import mend, shrink
from servecheck.watch import Watch
from servespec.actions import Action
from servespec.config import Config
from servespec.errors import SpecError
from servespec.machine import Machine
from servespec.policy import Policy
from servespec.properties import PROPERTIES

WITH: Callable[..., Policy] = Policy


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
    if asked is None or asked.expected(config, policy):
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
