"""Charts of a run: which request sits in which slot, step by step.

Theory of operation. A chart is a fold over the events of each step. `lanes` has a lane for each
request, a sign for each step; `text` prints it, for docs and terminals. `spells` has the stretches
of time that a request spends in a slot: it takes the lowest free slot when it is admitted and
leaves it when it ends or is sent back. Machines have no slots, only a number of seats; this is how
seats are told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from attrs import frozen

from servespec.events import Admitted, Event, Finished, Preempted, Submitted
from servespec.theory.stream import Events, computed


class Sign(Enum):
    """What becomes of a request in a step."""

    ABSENT = " "
    WAITS = "."
    COMPUTES = "#"
    HOLDS = "-"
    """It runs, and this step computes nothing of it."""
    SENT_BACK = "x"


LEGEND = ". waits   # computes   - runs, computes nothing   x is sent back"


def lanes(steps: Sequence[Events]) -> dict[str, tuple[Sign, ...]]:
    """A sign for each request and step, requests in order of arrival."""
    found: dict[str, list[Sign]] = {}
    waiting: set[str] = set()
    running: set[str] = set()
    for at, events in enumerate(steps):
        back: set[str] = set()
        ended: set[str] = set()
        for event in events:
            match event:
                case Submitted(id):
                    waiting.add(id)
                    found[id] = [Sign.ABSENT] * at
                case Admitted(id):
                    waiting.discard(id)
                    running.add(id)
                case Preempted(id):
                    back.add(id)
                    running.discard(id)
                    waiting.add(id)
                case Finished(id):
                    ended.add(id)
        done = computed(events)
        for id, lane in found.items():
            if id in done:
                lane.append(Sign.COMPUTES)
            elif id in back:
                lane.append(Sign.SENT_BACK)
            elif id in running:
                lane.append(Sign.HOLDS)
            else:
                lane.append(Sign.WAITS if id in waiting else Sign.ABSENT)
        running -= ended
        waiting -= ended
    return {id: tuple(lane) for id, lane in found.items()}


def text(name: str, steps: Sequence[Events]) -> tuple[str, ...]:
    """A line for each request: its id, and a character a step."""
    drawn = lanes(steps)
    widest = max(map(len, drawn), default=0)
    width = len(name)
    return tuple(
        f"{name if i == 0 else '':<{width}}  {id:<{widest}} |{''.join(s.value for s in lane)}|"
        for i, (id, lane) in enumerate(drawn.items())
    )


@frozen
class Spell:
    """A request in a slot, from the start of step `start` to the end of step `end` - 1."""

    slot: int
    id: str
    start: int
    end: int
    sent_back: bool
    """It left because it was preempted, in the pass of step `end`."""


def spells(steps: Sequence[Events]) -> tuple[Spell, ...]:
    """In order of their starts. Who is still there at the end of the run leaves then."""
    found: list[Spell] = []
    slots: dict[str, tuple[int, int]] = {}
    for at, events in enumerate(steps):
        for event in events:
            _moved(found, slots, at, event)
    found += [Spell(slot, id, start, len(steps), False) for id, (slot, start) in slots.items()]
    return tuple(sorted((s for s in found if s.end > s.start), key=lambda s: (s.start, s.slot)))


def _moved(found: list[Spell], slots: dict[str, tuple[int, int]], at: int, event: Event) -> None:
    match event:
        case Admitted(id):
            taken = {slot for slot, _ in slots.values()}
            slots[id] = next(i for i in range(len(taken) + 1) if i not in taken), at
        case Preempted(id) | Finished(id) if id in slots:
            slot, start = slots.pop(id)
            back = isinstance(event, Preempted)
            found.append(Spell(slot, id, start, at if back else at + 1, back))
