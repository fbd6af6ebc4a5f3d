"""A lasso as a table: what happens once round, and who holds what afterwards."""

from __future__ import annotations

from collections.abc import Sequence

from servespec.actions import Action, Complete, Submit
from servespec.events import (
    Admitted,
    Delivered,
    Event,
    Finished,
    Preempted,
    Scheduled,
    Skipped,
)
from servespec.machine import Machine

HEADER = "| | action | what happens | runs: computed of length, blocks | waits |"
RULE = "| --- | --- | --- | --- | --- |"


def lap(machine: Machine, stem: Sequence[Action], loop: Sequence[Action]) -> str:
    """A markdown table of the actions of a run, one a row; those of the loop are marked ↻."""
    state, rows = machine.initial(), [HEADER, RULE]
    for at, action in enumerate((*stem, *loop)):
        moved = machine.apply(state, action)
        state = moved.state
        told = (
            "" if at < len(stem) else "↻",
            _action(action),
            "; ".join(filter(None, map(_event, moved.events))) or "–",
            "; ".join(
                f"{r.id} {r.computed} of {r.length}, {' '.join(map(str, r.table)) or 'none'}"
                for r in state.running
            )
            or "–",
            " ".join(r.id for r in state.waiting) or "–",
        )
        rows.append(f"| {' | '.join(told)} |")
    return "\n".join(rows)


def _action(action: Action) -> str:
    match action:
        case Submit(id, prompt, max_tokens):
            return f"submit {id}: {' '.join(map(str, prompt))}, writes {max_tokens}"
        case Complete():
            return "complete"
    return type(action).__name__.lower()


def _event(event: Event) -> str:
    match event:
        case Admitted(id):
            return f"{id} admitted"
        case Scheduled(id, tokens):
            return f"{id} +{tokens}"
        case Preempted(id):
            return f"**{id} gives way**"
        case Delivered(id, _, tokens):
            return f"{id} gets {' '.join(map(str, tokens))}"
        case Finished(id):
            return f"{id} ends"
        case Skipped(id, reason):
            return f"{id} passed over: {reason.name.lower().replace('_', ' ')}"
    return ""
