"""Isolation: what a tenant can see of another one, who shares the engine with it.

Theory of operation. Tenants are namespaces. What tenant A can see of a run is what happens to its
own requests: when they are admitted, with how many hits, in which blocks, what is scheduled, sent
back, delivered, and when they end (`seen_by`). ISO-1 compares two runs that differ in the tokens of
another tenant alone, and says that A sees the same in both.

It follows from EQV-1. Let ρ rename the tokens of tenant B, and nothing else. The second run is the
first one renamed: the initial state has no tokens, so ρ leaves it as it is, and each step commutes
with ρ. So the events of the second run are the renamed events of the first, and ρ changes no event
of A.

What ISO-1 does **not** promise: that B's *load* stays hidden. A renaming keeps the lengths of B's
prompts and which of them are equal. With more requests or longer ones B takes more blocks, and what
is evicted for them may be A's. `servespec.theory.attack` and the tests show both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from attrs import evolve

from servespec.actions import Action, Complete, Output, Submit
from servespec.chain import Token, Tokens
from servespec.errors import ActionDisabled
from servespec.events import (
    Admitted,
    Delivered,
    Event,
    Finished,
    Preempted,
    Refused,
    Scheduled,
    Skipped,
    Submitted,
)
from servespec.machine import Machine
from servespec.theory.register import Kind, theorem

Ids = frozenset[str]
View = tuple[tuple[Event, ...], ...]
"""A tenant's events, one tuple an action."""


def seen_by(ids: Ids, events: Iterable[Event]) -> tuple[Event, ...]:
    """The events of these requests. Those of the cache are nobody's."""
    found: list[Event] = []
    for event in events:
        match event:
            case (
                Submitted(id)
                | Refused(id)
                | Admitted(id)
                | Scheduled(id)
                | Skipped(id)
                | Preempted(id)
                | Delivered(id)
                | Finished(id)
            ) if id in ids:
                found.append(event)
    return tuple(found)


def view(machine: Machine, actions: Iterable[Action], ids: Ids) -> View:
    """What the owner of these requests sees of a run.

    Raises:
        ActionDisabled: a state does not offer its action.
    """
    state, found = machine.initial(), []
    for action in actions:
        moved = machine.apply(state, action)
        state = moved.state
        found.append(seen_by(ids, moved.events))
    return tuple(found)


def disguised(
    actions: Iterable[Action], ids: Ids, token: Callable[[Token], Token]
) -> tuple[Action, ...]:
    """The actions with other tokens in all that these requests read, write and stop at."""

    def text(tokens: Tokens) -> Tokens:
        return tuple(map(token, tokens))

    def output(o: Output) -> Output:
        return Output(o.id, text(o.tokens), text(o.drafts)) if o.id in ids else o

    found: list[Action] = []
    for action in actions:
        match action:
            case Submit(id, prompt, stop=stop) if id in ids:
                found.append(evolve(action, prompt=text(prompt), stop=text(stop)))
            case Complete(outputs):
                found.append(Complete(tuple(map(output, outputs))))
            case _:
                found.append(action)
    return tuple(found)


@theorem("ISO-1", Kind.H)
def tells(
    machine: Machine, actions: Sequence[Action], theirs: Ids, token: Callable[[Token], Token]
) -> str | None:
    """For any injective renaming of the tokens of one tenant, whose requests are `theirs`, all
    others see the same of the run: hits, blocks, steps, tokens, order. The tenant has a namespace
    of its own; without one the statement is false.

    Returns what somebody else can tell, or None.
    """
    others = frozenset(a.id for a in actions if isinstance(a, Submit)) - theirs
    one = view(machine, actions, others)
    try:
        two = view(machine, disguised(actions, theirs, token), others)
    except ActionDisabled as error:
        return f"what happened cannot happen: {error}"
    return next(
        (
            f"action {n}: {before} becomes {after}"
            for n, (before, after) in enumerate(zip(one, two, strict=True))
            if before != after
        ),
        None,
    )
