"""A folded step, and the properties that are asked of it."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from servespec.chain import Chain
from servespec.plan import Plan
from servespec.pool import Blocks
from servespec.properties.base import Fall, Falls, Outcome, Step, step_property
from servespec.properties.books import Moment
from servespec.properties.fold import Fold
from servespec.request import Request


@frozen
class Folded:
    """A step, folded: its moments, and what must be there afterwards."""

    step: Step
    moments: tuple[Moment, ...]
    queue: Blocks
    index: dict[Chain, Blocks]
    waiting: tuple[Request, ...]
    running: tuple[Request, ...]
    in_flight: tuple[Plan, ...]
    problem: str | None


_last: list[Folded] = []


def folded(step: Step) -> Folded:
    """The fold of a step. Several properties ask for it, one after the other: the last one is
    kept."""
    if not _last or _last[0].step is not step:
        _last[:] = [_whole(step)]
    return _last[0]


def _whole(step: Step) -> Folded:
    if step.problem is not None:
        return Folded(step, (), (), {}, (), (), (), step.problem)
    fold = Fold.of(step)
    moments = tuple(fold.moments())
    return Folded(
        step,
        moments,
        tuple(fold.blocks.queue),
        fold.blocks.index,
        tuple(fold.waiting),
        tuple(fold.running),
        tuple(fold.in_flight),
        fold.problem,
    )


def folded_property(
    name: str, *falls: Falls
) -> Callable[[Callable[[Folded], Outcome]], Callable[[Folded], Outcome]]:
    """Register a property of kind T that is asked of the fold."""

    def register(check: Callable[[Folded], Outcome]) -> Callable[[Folded], Outcome]:
        def asked(step: Step) -> Outcome:
            fold = folded(step)
            return check(fold) if fold.problem is None else Fall(fold.problem)

        asked.__doc__ = check.__doc__
        step_property(name, *falls)(asked)
        return check

    return register
