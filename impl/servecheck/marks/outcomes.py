"""Marks of what a step brings: tokens, ends, stored blocks, what is left behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from servecheck.marks.blocks import storing
from servecheck.marks.mark import Mark, having
from servespec.events import BlockStored, Delivered, Event, Finished, Reason
from servespec.machine import Complete, acceptable
from servespec.properties.base import Step
from servespec.properties.folded import folded


def outcome(step: Step, complete: Complete) -> Iterator[Mark]:
    plan, config = step.before.in_flight[0], step.machine.config
    sampled = {output.id: output.tokens for output in complete.outputs}
    delivered = {e.id: e.tokens for e in step.events if isinstance(e, Delivered)}
    ended = [e for e in step.events if isinstance(e, Finished)]
    for entry in plan.entries:
        if entry.cancelled:
            yield Mark.OUTPUT_IGNORED
            if any(r.id == entry.id for r in step.before.live):
                yield Mark.OUTPUT_OF_NAMESAKE
        elif entry.yields and acceptable(entry):
            accepted = len(sampled[entry.id]) - 1
            yield _accepted(accepted, len(entry.drafts))
    for e in ended:
        request, tokens = step.before.find(e.id), delivered.get(e.id, ())
        if request is None:
            continue
        cut = len(tokens) < len(sampled.get(e.id, ()))
        whole = len(request.output) + len(tokens) >= request.max_tokens
        yield from having(
            {
                Mark.ENDS_BY_STOP: e.reason is Reason.STOP,
                Mark.ENDS_BY_MAX_TOKENS: e.reason is Reason.LENGTH and whole,
                Mark.ENDS_BY_MODEL_LENGTH: e.reason is Reason.LENGTH
                and request.length + len(tokens) >= config.max_model_len,
                Mark.END_CUTS_DRAFTS: cut and e.reason is Reason.LENGTH,
                Mark.STOP_CUTS_DRAFTS: cut and e.reason is Reason.STOP,
            }
        )
    if len(ended) > 1:
        yield Mark.SEVERAL_END
    if plan.deferred:
        yield Mark.DEFERRED_DONE


def _accepted(accepted: int, proposed: int) -> Mark:
    if accepted == proposed:
        return Mark.DRAFTS_ALL
    return Mark.DRAFTS_SOME if accepted else Mark.DRAFTS_NONE


def stored(step: Step) -> Iterator[Mark]:
    """Blocks published after a step; one that ends behind the text that was known before it was
    completed by accepted drafts."""
    if not any(isinstance(e, BlockStored) for e in step.events):
        return
    for m in folded(step).moments:
        if isinstance(m.event, BlockStored):
            yield from storing(m, m.event)
            holder = next((r.id for r in m.running if m.event.block in r.table), "")
            owner = step.before.find(holder)
            if owner is not None and m.event.key.length > owner.length:
                yield Mark.BLOCK_BY_DRAFTS


def left(step: Step) -> Iterator[Mark]:
    """What those who leave by this step leave behind."""
    held, plans = step.after.pool.blocks, step.after.in_flight
    for request_id in _ids(step.events):
        request = step.before.find(request_id)
        if request is None:
            continue
        if any(request.table and request.table in plan.deferred for plan in plans):
            yield Mark.DEFERRED
        elif any(held[b].ref_count > 0 for b in request.table):
            yield Mark.SHARED_OUTLIVES


def _ids(events: Iterable[Event]) -> tuple[str, ...]:
    return tuple(e.id for e in events if isinstance(e, Finished))
