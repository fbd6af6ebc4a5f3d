"""Makes what the search found small: fewer actions, smaller sizes, a policy nearer to a profile.

Theory of operation. The program and the sizes are shrunk by `servecheck.trace.machines`. Then the
policy: to a profile as it is, or else each choice is put back to what it is in the profile next to
it, as long as the program goes on failing, so that what is left says on which choices that depends.
Then program and sizes once more. The result is a function of what was found.

A failure stays what it is: a property goes on falling where it is not known to fall; a divergence
begins with a field that also differed where it was found (which is what was wrong first, and not
some fault that hides behind it). A new engine goes beside each candidate; how many are tried is
limited, as an engine may be slow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from attrs import fields

from servecheck.engines.protocol import EngineError
from servecheck.fuzz.tell import PropertyFell, fell
from servecheck.lockstep.compare import Difference
from servecheck.lockstep.subject import Parted, Subject, parted
from servecheck.tell import NAMED, nearest
from servecheck.trace.machines import Fails, shrink_world
from servecheck.trace.shrink import StillFails, mend
from servecheck.trace.sideways import sideways
from servecheck.trace.simpler import Actions
from servecheck.watch import Watch
from servespec.actions import Action
from servespec.config import Config
from servespec.errors import SpecError
from servespec.machine import Machine
from servespec.policy import Policy
from servespec.properties import PROPERTIES

WITH: Callable[..., Policy] = Policy

SHORT = 6
"""Actions of a program that is short enough."""
CANDIDATES = 5_000
"""Programs that are tried to make a divergence smaller."""


def smallest(machine: Machine, actions: Actions, fails: Fails) -> tuple[Machine, Actions]:
    """The smallest program and machine that are found, the policy as near to a profile as it can
    be."""
    found: tuple[Machine, Actions] | None = machine, actions
    while found is not None:
        machine, actions = shrink_world(*found, fails)
        nearer, mended = _nearer(machine, actions, fails)
        if nearer is not machine:
            machine, actions = shrink_world(nearer, mended, fails)
        found = None
        if len(actions) > SHORT:
            found = sideways(machine, actions, fails, _next_to)
    return machine, actions


def _nearer(machine: Machine, actions: Actions, fails: Fails) -> tuple[Machine, Actions]:
    """Under a profile; or else under a policy that differs from the profile next to it in no axis
    needlessly."""
    if machine.policy in NAMED.values():
        return machine, actions
    for policy in NAMED.values():
        found = _under(policy, machine, actions, fails)
        if found is not None:
            return found
    kept = 0
    while kept < len(left := tuple(_put_back(machine.policy))):
        found = _under(left[kept], machine, actions, fails)
        if found is None:
            kept += 1
        else:
            machine, actions = found
    return machine, actions


def _put_back(policy: Policy) -> Iterator[Policy]:
    """One choice after the other as in the profile next to a policy."""
    base = NAMED[nearest(policy)]
    mine = {axis.name: getattr(policy, axis.name) for axis in fields(Policy)}
    for name, value in mine.items():
        usual = getattr(base, name)
        if value != usual:
            yield WITH(**{**mine, name: usual})


def _next_to(policy: Policy) -> tuple[Policy, ...]:
    """One choice as in the profile next to a policy, or all of them."""
    return (*_put_back(policy), NAMED[nearest(policy)])


def _under(
    policy: Policy, machine: Machine, actions: Actions, fails: Fails
) -> tuple[Machine, Actions] | None:
    """The program under another policy, if it goes on failing."""
    try:
        other = Machine(machine.config, policy)
    except SpecError:
        return None
    mended = mend(other, actions)
    return (other, mended) if fails(other)(mended) else None


# --- falls ---------------------------------------------------------------------------------


def shrunk(fall: PropertyFell) -> PropertyFell:
    """The smallest fall of the same property that is found; `fall` itself if its actions alone do
    not bring it about again."""

    def fell_again(machine: Machine, actions: Sequence[Action]) -> PropertyFell | None:
        return fallen(machine.config, machine.policy, actions, fall.property_id)

    def fails(machine: Machine) -> StillFails:
        return lambda actions: fell_again(machine, actions) is not None

    machine = Machine(fall.config, fall.policy)
    if fell_again(machine, fall.actions) is None:
        return fall
    return fell_again(*smallest(machine, fall.actions, fails)) or fall


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


# --- divergences ---------------------------------------------------------------------------


def shrunk_divergence(subject: Subject, found: Parted, candidates: int = CANDIDATES) -> Parted:
    """The smallest divergence found that begins with a field that differs in this one."""
    kinds = {kind(difference) for difference in found.divergence.differences}
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
        same = other is not None and kind(other.divergence.differences[0]) in kinds
        return other if same else None

    def fails(machine: Machine) -> StillFails:
        return lambda actions: parts(machine, actions) is not None

    machine, actions = smallest(found.machine, found.actions, fails)
    left = 1
    return parts(machine, actions) or found


def kind(difference: Difference) -> str:
    """What differs, whoever it is about: `tokens` of `plan of r0: tokens`, `end` of `end of r0`."""
    whose, _, part = difference.field.rpartition(": ")
    return part if whose else re.split(" of | on ", part, maxsplit=1)[0]
