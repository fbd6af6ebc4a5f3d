"""Marks of arrivals, and of discards, aborts and resets, which undo."""

from __future__ import annotations

from collections.abc import Iterator

from servecheck.marks.mark import Mark, having
from servespec.actions import Submit
from servespec.config import usable_blocks
from servespec.events import CacheCleared, Preempted, Refused, Submitted
from servespec.machine import Abort, fits_alone
from servespec.policy import Memory
from servespec.properties.base import Step


def arrival(step: Step, submit: Submit) -> Iterator[Mark]:
    machine, before = step.machine, step.before
    config, size = machine.config, len(submit.prompt)
    queued = any(isinstance(e, Submitted) for e in step.events)
    request = step.after.find(submit.id)
    if not queued or request is None:
        too_long = size > config.max_model_len
        yield Mark.PROMPT_TOO_LONG if too_long else Mark.IMPOSSIBLE_REFUSED
        return
    plans = before.in_flight
    yield from having(
        {
            Mark.WHOLE_BLOCKS: size % config.block_size == 0,
            Mark.FILLS_POOL: config.blocks_for(size) == usable_blocks(config, machine.policy),
            Mark.IMPOSSIBLE_QUEUED: not fits_alone(machine, submit),
            Mark.EQUAL_ARRIVALS: any(r.arrival == request.arrival for r in before.live),
            Mark.OVERTAKES: step.after.waiting[-1] is not request,
            Mark.ID_REUSED_IN_FLIGHT: any(e.id == submit.id for p in plans for e in p.entries),
        }
    )


def discarded(step: Step) -> Iterator[Mark]:
    paged = step.machine.policy.memory is Memory.PAGED
    for entry in step.before.in_flight[-1].entries:
        if entry.cancelled:
            yield Mark.DISCARDS_LEFT
        elif entry.admitted:
            yield Mark.DISCARDS_ADMISSION
        else:
            yield Mark.DISCARDS_PREFILL if entry.was_prefilling else Mark.DISCARDS_DECODE
        if paged and entry.new_blocks and not entry.cancelled:
            yield Mark.DISCARD_GIVES_BACK


def aborted(step: Step, abort: Abort) -> Iterator[Mark]:
    before, request = step.before, step.before.find(abort.id)
    entries = [e for plan in before.in_flight for e in plan.entries if e.id == abort.id]
    if request is None:
        yield Mark.ABORTS_TWICE if entries else Mark.ABORTS_NOBODY
    elif any(request is r for r in before.waiting):
        yield Mark.ABORTS_PREEMPTED if request.output else Mark.ABORTS_WAITING
    elif any(not e.cancelled for e in entries):
        yield Mark.ABORTS_IN_FLIGHT
    else:
        yield Mark.ABORTS_PREFILL if request.prefilling else Mark.ABORTS_DECODE


def reset(step: Step) -> Iterator[Mark]:
    preempted = any(isinstance(e, Preempted) for e in step.events)
    cleared = any(isinstance(e, CacheCleared) for e in step.events)
    flying = any(not e.cancelled for plan in step.before.in_flight for e in plan.entries)
    yield from having(
        {
            Mark.RESET_DONE: cleared and bool(step.before.pool.index.copies),
            Mark.RESET_REFUSED: any(isinstance(e, Refused) for e in step.events),
            Mark.RESET_PREEMPTS: preempted,
            Mark.RESET_IN_FLIGHT: preempted and flying,
        }
    )
