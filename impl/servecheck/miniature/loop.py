"""A serving loop of the specification, or of an engine in its place, driven as the article's
program drives its own; and what that program asserts."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, field

from servecheck.engines.whole import MakeWhole, SpecWhole, Whole
from servespec.actions import Submit
from servespec.chain import Tokens
from servespec.events import Delivered, Event, Refused
from servespec.machine import Action, Complete, Machine, Output, Schedule
from servespec.plan import State

SAMPLED = 1_000
"""What the model answers whenever it is asked. No prompt holds it: the article's tokens are < 200,
and the other prompts consist of their number."""

BLOCK_SIZE = 16
"""Tokens in a block, except in the first part, where the article takes 4."""


@define(eq=False)
class MiniatureError(Exception):
    """Something that the article's program asserts does not hold of the machine."""

    part: str
    what: str

    def __str__(self) -> str:
        return f"{self.part}: {self.what}"


def hold(condition: bool, part: str, what: str) -> None:
    """One of the article's assertions; `what` says what is wrong if `condition` does not hold."""
    if not condition:
        raise MiniatureError(part, what)


@define
class Loop:
    """A serving loop with these sizes and choices: the machine itself, or what `make` makes of it.
    Each verb returns what is said to it."""

    machine: Machine
    make: MakeWhole = SpecWhole
    serving: Whole = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.serving = self.make(self.machine)

    @property
    def state(self) -> State:
        return self.serving.state

    def do(self, action: Action) -> tuple[Event, ...]:
        events = self.serving.apply(action)
        # A request turned away would only make the averages better.
        refused = [event for event in events if isinstance(event, Refused)]
        hold(not refused, "the loop", f"says no: {refused}")
        return events

    def submit(self, name: str, prompt: Tokens, max_tokens: int) -> tuple[Event, ...]:
        return self.do(Submit(name, prompt, max_tokens))

    def schedule(self) -> tuple[Event, ...]:
        return self.do(Schedule())

    def complete(self) -> tuple[Event, ...]:
        """The pass has run and sampled for everybody in it: none of the profiles cuts prompts."""
        plan = self.state.in_flight[0]
        return self.do(Complete(tuple(Output(entry.id, (SAMPLED,)) for entry in plan.entries)))

    @property
    def held(self) -> frozenset[int]:
        """Blocks that a table holds."""
        return frozenset(b for b, block in enumerate(self.state.pool.blocks) if block.ref_count)

    def check_returned(self, part: str) -> None:
        """All blocks have come back: each stands in the free queue, once, and no table holds it."""
        free = self.state.pool.free
        whole = list(range(self.machine.policy.first_block, self.machine.config.num_blocks))
        away = sorted(self.held.union(set(whole).difference(free)))
        back = sorted(free) == whole and not away
        hold(back, part, f"blocks {away} have not come back, the free queue is {free}")


def distinct(number: int, length: int) -> Tokens:
    """A prompt that shares no block with that of another number."""
    return (number,) * length


def delivered(events: Iterable[Event]) -> int:
    """Tokens that requests got."""
    return sum(len(event.tokens) for event in events if isinstance(event, Delivered))
