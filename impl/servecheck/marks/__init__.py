"""Marks: named situations that a check of a serving loop must have been in.

Theory of operation. Steps and properties counted say how long a run was, not where it has been:
a million steps in which nobody is preempted prove nothing about preemption. A mark is a situation
in the words of the field, such as "a look-up hits a block that nobody holds". `marks_of` reads the
marks of one step off its states and events; it never looks inside a pass, so it works as well for
an engine that is not the specification.

Some marks only exist under some policies or sizes. `Mark.needs` says which, as a condition that is
true whenever the mark is reached: under sizes and choices that do not meet it, a mark that is not
reached is no gap.

The moments inside a pass (who ran, what was in the queue and the index at the moment of an event)
come from `servespec.properties.folded`.
"""

from __future__ import annotations

from collections.abc import Iterator

from servecheck.marks.coming import aborted, arrival, discarded, reset
from servecheck.marks.mark import Mark, possible
from servecheck.marks.outcomes import left, outcome, stored
from servecheck.marks.passes import in_pass, plan
from servespec.actions import Submit
from servespec.machine import Abort, Complete, Discard, ResetCache, Schedule
from servespec.properties.base import Step

__all__ = ["Mark", "marks_of", "possible"]


def marks_of(step: Step) -> frozenset[Mark]:
    """Every mark that this step reaches."""
    return frozenset(_marks(step))


def _marks(step: Step) -> Iterator[Mark]:
    match step.action:
        case Submit():
            yield from arrival(step, step.action)
        case Schedule():
            yield from plan(step)
            yield from in_pass(step)
        case Complete():
            yield from outcome(step, step.action)
            yield from stored(step)
            yield from left(step)
        case Discard():
            yield from discarded(step)
        case Abort():
            yield from aborted(step, step.action)
            yield from left(step)
        case ResetCache():
            yield from reset(step)
