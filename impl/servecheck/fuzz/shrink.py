"""Shrink a fall: fewer actions, simpler requests, a policy and sizes nearer to a profile.

Theory of operation. A candidate is a simpler program in a simpler world; it is taken if the same
property still falls in it. Candidates are *replayed leniently*: an action that the state no longer
offers is left out, and what a `Complete` brings is mended to fit the plan that is in flight, so
taking an action away does not break those behind it. Only the property in question is asked, which
makes a candidate cheap. Candidates are tried in a fixed order until none is taken any more: the
result is a function of the fall.

Hypothesis shrinks the choices behind a program; this shrinks the program. It is used for the walks
that Hypothesis did not make, and to finish what it could not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attrs import evolve, fields, frozen

from servecheck.fuzz.tell import NAMED, PropertyFell, differences
from servecheck.fuzz.walk import Walk
from servespec.chain import PUBLIC
from servespec.config import Config
from servespec.errors import SpecError
from servespec.machine import (
    Action,
    Complete,
    Discard,
    Machine,
    Output,
    ResetCache,
    Schedule,
    acceptable,
)
from servespec.plan import Planned
from servespec.policy import Policy
from servespec.properties import PROPERTIES
from servespec.request import Submit


@frozen
class Program:
    """Actions in a world."""

    config: Config
    policy: Policy
    actions: tuple[Action, ...]


def shrink(fall: PropertyFell, go_on: Callable[[], bool] = lambda: True) -> PropertyFell:
    """The simplest fall of the same property that can be reached; `go_on` may end the search."""
    best = fall
    taken = True
    while taken:
        taken = False
        for candidate in candidates(Program(best.config, best.policy, best.actions)):
            if not go_on():
                return best
            found = replay(candidate, fall.property_id)
            if found is not None and _weight(found) < _weight(best):
                best, taken = found, True
                break
    return best
