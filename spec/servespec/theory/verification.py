"""Drafts through the machine: a greedy target verifies them, and leaves no trace of the wrong ones.

Theory of operation. A `Server` is a machine with a model and a source of drafts for each request.
It plays a *script* of actions, and after that passes until everybody has left. `Schedule` in a
script stands for a whole pass: the plan, and the `Complete` that the model answers it with.
`Discard` stands for a plan that never ran.

The model does what a forward pass does: it reads, *through the block table*, what was written
there (the machine's ghost content), and answers at every scheduled position that needs an answer.
Drafts are accepted as long as they are what it says, then its own word follows. So an output can
be right only if all that stands below it is right: wrong sharing, a slot that was not overwritten
or a rejected token that stayed would lead to a wrong token, or to none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve, field, frozen

from servespec import pool as blocks
from servespec.actions import Action, Complete, Discard, Output, Schedule, Submit
from servespec.chain import Chain, Token, Tokens, keys
from servespec.errors import SpecError
from servespec.events import BlockStored, Delivered, Event
from servespec.machine import Machine, acceptable, written
from servespec.plan import Planned, State
from servespec.pool import Pool
from servespec.theory.drafts import NOTHING, Model, Source
from servespec.theory.register import Kind, theorem

Script = Sequence[Action]


@frozen
class Server:
    """A machine, what it serves, and where its drafts come from."""

    machine: Machine
    model: Model
    sources: Mapping[str, Source] = field(factory=dict)
    """By request; who has none gets no drafts."""
    most_passes: int = 1_000
    """After the script; a request that cannot be served would wait for ever."""

    @property
    def without_drafts(self) -> Server:
        """The same target alone, on a machine for γ = 0."""
        config = evolve(self.machine.config, num_speculative_tokens=0, num_lookahead_tokens=0)
        return Server(Machine(config, self.machine.policy), self.model, {}, self.most_passes)


@frozen
class Moment:
    """What an action has led to."""

    action: Action
    state: State
    events: tuple[Event, ...]


def serve(server: Server, script: Script) -> tuple[Moment, ...]:
    """Play a script, then pass after pass until nobody is left.

    Raises:
        SpecError: somebody is left after `most_passes`.
    """
    state, turns = server.machine.initial(), dict[str, int]()
    moments: list[Moment] = []

    def do(action: Action) -> None:
        nonlocal state
        moved = server.machine.apply(state, action)
        state = moved.state
        moments.append(Moment(action, state, moved.events))

    def play(action: Action) -> None:
        if isinstance(action, Discard):
            do(Schedule())
        do(action)
        if isinstance(action, Schedule):
            do(answer(server, state, turns))

    for action in script:
        play(action)
    for _ in range(server.most_passes):
        if not state.live:
            return tuple(moments)
        play(Schedule())
    left = [request.id for request in state.live]
    raise SpecError("serve", f"{left} are not served", "give them room, or more passes")


def answer(server: Server, state: State, turns: dict[str, int]) -> Complete:
    """What the model says to the oldest plan in flight. `turns` counts how often each request's
    source was asked, and is counted on."""
    plan, gamma = state.in_flight[0], server.machine.config.num_speculative_tokens
    pool = written(server.machine, state.pool, plan)
    outputs = []
    for entry in plan.entries:
        request = None if entry.cancelled else state.find(entry.id)
        if request is None or not entry.yields:
            continue
        tokens = _verified(server, pool, entry)
        text = request.prompt + request.output + tokens
        turn = turns.get(entry.id, 0)
        drafts = server.sources.get(entry.id, NOTHING).propose(text, turn, gamma)
        turns[entry.id] = turn + 1
        outputs.append(Output(entry.id, tokens, drafts))
    return Complete(tuple(outputs))


def _verified(server: Server, pool: Pool, entry: Planned) -> Tokens:
    """The drafts that the model agrees with, and its own word after them."""
    last = entry.start + len(entry.tokens) - len(entry.drafts) - 1
    accepted = 0
    while True:
        said = server.model(_read(server, pool, entry, last + accepted))
        if accepted == acceptable(entry) or said != entry.drafts[accepted]:
            return (*entry.drafts[:accepted], said)
        accepted += 1


def _read(server: Server, pool: Pool, entry: Planned, position: int) -> Tokens:
    """The text up to a position as the table reads it; none, where a slot was never written."""
    value = blocks.read(pool, server.machine.config.block_size, entry.table, position)
    return () if value is None else tuple(token for run in value.runs() for token in run)


def alone(model: Model, submit: Submit, max_model_len: int) -> Tokens:
    """The output that a greedy target gives to a request by itself, token by token."""
    output: tuple[Token, ...] = ()
    while len(output) < submit.max_tokens and len(submit.prompt) + len(output) < max_model_len:
        output = (*output, model(submit.prompt + output))
        if output[-1] in submit.stop:
            break
    return output


def outputs(moments: Sequence[Moment]) -> dict[str, Tokens]:
    """What each request was given."""
    given: dict[str, Tokens] = {}
    for moment in moments:
        for event in moment.events:
            if isinstance(event, Delivered):
                given[event.id] = given.get(event.id, ()) + event.tokens
    return given


@theorem("SPE-4", Kind.H)
def greedy_differs(server: Server, script: Script) -> str | None:
    """With greedy decoding the output is exactly what the target alone would give, whatever the
    drafts are, and whatever sharing, chunking, preemption and neighbours do, wherever CON-1 holds;
    of who is aborted, the beginning of it.

    Each id is submitted once.

    Returns:
        What differs, or None.
    """
    given = outputs(serve(server, script))
    aborted = {getattr(action, "id", "") for action in script if not isinstance(action, Submit)}
    for submit in (action for action in script if isinstance(action, Submit)):
        wanted = alone(server.model, submit, server.machine.config.max_model_len)
        found = given.get(submit.id, ())
        part = wanted[: len(found)] if submit.id in aborted else wanted
        if found != part:
            return f"request {submit.id!r} was given {found}, the target alone says {wanted}"
    return None


# --- SPE-3 ---------------------------------------------------------------------------------

Computed = tuple[int, tuple[Chain | None, ...]]
"""C, and the content of the C slots below it, read through the table."""


def computed_at(
    machine: Machine, moments: Sequence[Moment]
) -> dict[tuple[str, int], set[Computed]]:
    """What is computed of a request each time it rests with an output of a length, between passes:
    (id, tokens of output) → C and content. A request still in its prefill has no such point."""
    found: dict[tuple[str, int], set[Computed]] = {}
    size = machine.config.block_size
    for moment in moments:
        if moment.state.in_flight:
            continue
        for r in moment.state.running:
            if not r.prefilling:
                pool = moment.state.pool
                content = tuple(blocks.read(pool, size, r.table, i) for i in range(r.computed))
                found.setdefault((r.id, len(r.output)), set()).add((r.computed, content))
    return found


def published_keys(moments: Sequence[Moment]) -> set[Chain]:
    """Every key that was ever published."""
    events = (event for moment in moments for event in moment.events)
    return {event.key for event in events if isinstance(event, BlockStored)}


@theorem("SPE-3", Kind.H)
def drafts_left_behind(server: Server, script: Script) -> str | None:
    """No key of a rejected token is ever published: the keys are those that the run without drafts
    publishes, all of true texts. Whenever a request rests with so many tokens of output, its
    computed count and the content below it are those of the run without drafts. (Blocks taken, and
    what was evicted for them, may remain: rule 34.)

    Each id is submitted once, and nobody is aborted: that would end the two runs at different
    tokens.

    Returns:
        What was left behind, or None.
    """
    machine, plain = server.machine, server.without_drafts
    drafted, bare = serve(server, script), serve(plain, script)
    size, limit = machine.config.block_size, machine.config.max_model_len
    true = {
        key
        for s in script
        if isinstance(s, Submit)
        for key in keys(s.namespace, s.prompt + alone(server.model, s, limit), size)
    }
    stored = published_keys(drafted)
    if wrong := stored - true:
        return f"keys of no true text were published: {sorted(map(repr, wrong))}"
    if stored != published_keys(bare):
        return f"{len(stored)} keys were published, without drafts {len(published_keys(bare))}"
    points, wanted = computed_at(machine, drafted), computed_at(plain.machine, bare)
    for (name, length), found in points.items():
        if found != wanted.get((name, length)):
            counts = sorted(count for count, _ in found)
            return f"request {name!r} with {length} tokens of output has other content, C {counts}"
    return None
