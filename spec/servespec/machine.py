"""The serving machine: `Machine(config, policy)` moves a `State` by `Action`s.

Theory of operation. Requests arrive (`Submit`) and may leave at any moment (`Abort`).
`Schedule` makes a plan and puts it in flight; it is enabled even with nothing to do. `Complete`
brings what the oldest plan in flight has sampled. `Discard` drops the newest one, which then
never ran. `ResetCache` forgets what is cached.

    submit ──▶ waiting ──schedule──▶ in flight ──complete──▶ …
                            ▲            │
                            └──discard───┘

Every transition has the same shape: guards, what policy chooses, the effect, the new state and
its events. An action that is not enabled raises `ActionDisabled` and nothing happens. Every
choice is policy's: the machine has no clock and no chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from attrs import evolve, field, frozen

from servespec import policy as choose
from servespec import pool as blocks
from servespec.actions import (
    Abort,
    Action,
    Complete,
    Discard,
    Output,
    ResetCache,
    Schedule,
    Submit,
)
from servespec.chain import Tokens
from servespec.config import Config, check, usable_blocks
from servespec.errors import ActionDisabled, require
from servespec.events import Delivered, Event, Finished, Preempted, Reason, Refused, Submitted
from servespec.moves import published
from servespec.plan import Plan, Planned, State, let_go, sent_back
from servespec.policy import Policy, Publish
from servespec.pool import Pool
from servespec.request import Request, arrived, peak, with_output
from servespec.rules import rule
from servespec.scheduler import schedule


@frozen
class Transition:
    state: State
    events: tuple[Event, ...] = ()


@frozen
class Universe:
    """What may happen to a machine: the finite choice from which `enabled` offers actions."""

    submits: tuple[Submit, ...]
    tokens: Tokens
    """What can be sampled and drafted."""
    resets: tuple[ResetCache, ...] = (ResetCache(False), ResetCache(True))


@frozen
class Machine:
    """The specification of a serving loop with these sizes and these choices.

    Raises:
        ConfigError: if they contradict each other.
    """

    config: Config
    policy: Policy = field()

    def __attrs_post_init__(self) -> None:
        check(self.config, self.policy)

    def initial(self) -> State:
        return State(blocks.initial(self.config, self.policy))

    def apply(self, state: State, action: Action) -> Transition:
        """One transition.

        Raises:
            ActionDisabled: the state does not offer this action; nothing happened.
        """
        match action:
            case Submit():
                return submit(self, state, action)
            case Schedule():
                return schedule_step(self, state)
            case Complete():
                return complete(self, state, action)
            case Discard():
                return discard(self, state)
            case Abort():
                return abort(self, state, action)
            case ResetCache():
                return reset_cache(self, state, action)
            case _:
                raise ActionDisabled("apply", f"{action!r} is no action", "give one of the six")

    def enabled(self, state: State, universe: Universe) -> Iterator[Action]:
        """Every enabled action of a universe, in a fixed order."""
        for request in universe.submits:
            if state.find(request.id) is None:
                yield request
        if len(state.in_flight) < self.config.max_steps_in_flight:
            yield Schedule()
        if state.in_flight:
            yield from self.completions(state.in_flight[0], universe.tokens)
            if self.can_discard:
                yield Discard()
        for live in state.live:
            yield Abort(live.id)
        yield from universe.resets

    @property
    def can_discard(self) -> bool:
        """A policy that lets blocks be found before they are written must run its plans."""
        return not self.policy.publishes_unwritten

    def completions(self, plan: Plan, tokens: Tokens) -> Iterator[Complete]:
        """Every outcome of a plan: accepted drafts, the sampled token, the next drafts."""
        longest = self.config.num_speculative_tokens
        drafts = [d for n in range(longest + 1) for d in product(tokens, repeat=n)]
        live = [entry for entry in plan.entries if not entry.cancelled and entry.yields]
        outcomes = (
            [
                Output(entry.id, (*entry.drafts[:accepted], token), ahead)
                for accepted in range(acceptable(entry) + 1)
                for token in tokens
                for ahead in drafts
            ]
            for entry in live
        )
        for outputs in product(*outcomes):
            yield Complete(outputs)


def acceptable(entry: Planned) -> int:
    """Most drafts of an entry that can be accepted: padding never is."""
    return 0 if any(draft < 0 for draft in entry.drafts) else len(entry.drafts)


def fits_alone(machine: Machine, request: Submit | Request) -> bool:
    """LIV-1's condition on a request, before it comes or while it is alive: with the machine to
    itself it finds room for all that it can come to use."""
    config, policy = machine.config, machine.policy
    slots = peak(config, len(request.prompt), request.max_tokens)
    longest = min(len(request.prompt) + request.max_tokens - 1, config.max_model_len - 1)
    return (
        config.blocks_for(slots) <= usable_blocks(config, policy)
        and len(request.prompt) < config.max_model_len
        and (policy.chunked_prefill or longest <= config.max_num_batched_tokens)
    )


def refused(machine: Machine, submit: Submit) -> bool:
    """Rule S: the prompt is longer than any text, or policy turns away what can never fit."""
    if len(submit.prompt) > machine.config.max_model_len:
        return True
    return choose.refuses_impossible(machine.policy) and not fits_alone(machine, submit)


@rule("S", engine="Scheduler.add_request; Processor, prompt length")
def submit(machine: Machine, state: State, action: Submit) -> Transition:
    """A request arrives and waits; the id of a living one is not given twice. A prompt longer than
    max_model_len is refused. Any other that can never fit is refused, or queued all the same, by
    policy."""
    require(
        state.find(action.id) is None,
        f"Submit {action.id!r}",
        "a request with this id is alive",
        "wait until it has left, or choose another id",
    )
    if refused(machine, action):
        return Transition(state, (Refused(action.id, Reason.IMPOSSIBLE),))
    youngest = max((r.arrival for r in state.live), default=-1)
    arrival = max(youngest, 0) if action.with_last else youngest + 1
    request = arrived(action, arrival, machine.config, machine.policy)
    place = choose.place_in_waiting(machine.policy, state.waiting, request, preempted=False)
    waiting = (*state.waiting[:place], request, *state.waiting[place:])
    moved = State(state.pool, waiting, state.running, state.in_flight)
    return Transition(moved, (Submitted(action.id),))


@rule("31", engine="EngineCore.step, Scheduler.has_requests")
def schedule_step(machine: Machine, state: State) -> Transition:
    """A plan is made whether or not there is anything to do, unless as many as may be are in
    flight. vLLM steps while somebody is live or has just left, so there is one empty step after
    the last has finished."""
    require(
        len(state.in_flight) < machine.config.max_steps_in_flight,
        "Schedule",
        f"{len(state.in_flight)} plans are in flight",
        "complete or discard one first",
    )
    moved, events = schedule(machine.config, machine.policy, state)
    return Transition(moved, events)


@rule("29", engine="Scheduler.update_from_output")
def complete(machine: Machine, state: State, action: Complete) -> Transition:
    """Outputs are handled in scheduling order. Who finishes frees its table at once, and leaves
    the running list after all outputs; the output of a request that has left is ignored."""
    require(bool(state.in_flight), "Complete", "no plan is in flight", "schedule first")
    plan, rest = state.in_flight[0], state.in_flight[1:]
    outputs = {output.id: output for output in action.outputs}
    require(
        len(outputs) == len(action.outputs), "Complete", "an id comes twice", "one output a request"
    )
    _check_outputs(machine, plan, outputs)
    pool = written(machine, state.pool, plan)
    events: list[Event] = []
    changed: dict[str, Request | None] = {}
    for entry in plan.entries:
        request = None if entry.cancelled else state.find(entry.id)
        if request is None:
            continue
        ahead = sum(len(e.tokens) for later in rest for e in later.entries if e.id == entry.id)
        grown, reason, delivered = with_tokens(machine, request, entry, outputs.get(entry.id))
        pool, known, stored = published(
            pool, machine.policy, grown, grown.computed - ahead, machine.config, Publish.AFTER_STEP
        )
        events += (*delivered, *stored)
        changed[entry.id] = known
        if reason is not None:
            pool, rest = let_go(pool, machine.policy, rest, known)
            events.append(Finished(entry.id, reason))
            changed[entry.id] = None
    for table in plan.deferred:
        pool = blocks.release(pool, machine.policy, table).pool
    after = (changed.get(r.id, r) for r in state.running)
    running = tuple(r for r in after if r is not None)
    return Transition(_ranked(State(pool, state.waiting, running, rest)), tuple(events))


def _check_outputs(machine: Machine, plan: Plan, outputs: dict[str, Output]) -> None:
    entries = {entry.id: entry for entry in plan.entries}
    for output in outputs.values():
        require(
            output.id in entries,
            "Complete",
            f"request {output.id!r} is not in the plan",
            "bring outputs of the plan's requests only",
        )
        require(
            len(output.drafts) <= machine.config.num_speculative_tokens,
            "Complete",
            f"{len(output.drafts)} drafts for request {output.id!r}",
            f"propose at most {machine.config.num_speculative_tokens}",
        )
    for entry in plan.entries:
        if entry.cancelled:
            continue
        tokens = outputs.get(entry.id, Output(entry.id)).tokens
        accepted = tokens[:-1]
        require(
            bool(tokens) == entry.yields,
            "Complete",
            f"request {entry.id!r} has {len(tokens)} tokens",
            "a prefill chunk samples none, any other pass at least one",
        )
        require(
            len(accepted) <= acceptable(entry) and accepted == entry.drafts[: len(accepted)],
            "Complete",
            f"request {entry.id!r} accepts {accepted} of drafts {entry.drafts}",
            "accepted drafts are the first ones, and one token follows",
        )


def written(machine: Machine, pool: Pool, plan: Plan) -> Pool:
    """Ghost: the forward pass writes, in scheduling order."""
    for e in plan.entries:
        pool = blocks.write(
            pool, machine.config.block_size, e.table, e.namespace, e.start, e.tokens
        )
    return pool


@rule("32", "34", engine="Scheduler.update_from_output, Scheduler.update_draft_token_ids")
def with_tokens(
    machine: Machine, request: Request, entry: Planned, output: Output | None
) -> tuple[Request, Reason | None, tuple[Event, ...]]:
    """Rejected drafts lower C and give no block back; then the tokens are appended. The new drafts
    replace the old ones, except for a prefill chunk, whose drafts are thrown away. Who was not
    in the pass keeps the drafts that it has."""
    if output is None or not entry.yields:
        return request, None, ()
    kept, reason = until_end(machine, request, output.tokens)
    rejected = len(entry.drafts) - (len(output.tokens) - 1)
    cut = len(output.tokens) - len(kept)
    computed = request.computed - rejected - cut
    ahead = evolve(request, computed=computed, drafts=output.drafts)
    grown = with_output(ahead, kept, machine.config, machine.policy)
    return grown, reason, (Delivered(request.id, len(request.output), kept),)


@rule("29", "37", engine="Scheduler._update_request_with_output, check_stop")
def until_end(machine: Machine, request: Request, tokens: Tokens) -> tuple[Tokens, Reason | None]:
    """Tokens are appended one by one until one ends the request: a stop token, or else the last
    that max_model_len or max_tokens allows; those behind it are dropped, and lower C. Nobody
    looks at max_tokens when drafts are scheduled: what overshoots is cut here."""
    room = min(
        machine.config.max_model_len - request.length, request.max_tokens - len(request.output)
    )
    for count, token in enumerate(tokens, 1):
        if token in request.stop:
            return tokens[:count], Reason.STOP
        if count >= room:
            return tokens[:count], Reason.LENGTH
    return tokens, None


@rule("R", engine="none: a step that failed before it ran")
def discard(machine: Machine, state: State) -> Transition:
    """A discarded step never ran: what it was to compute is not computed, the blocks taken for it
    go back by the release rule, its drafts are lost. Admissions, preemptions and evictions stand.
    An engine that lets blocks be found before they are written cannot discard."""
    require(bool(state.in_flight), "Discard", "no plan is in flight", "schedule first")
    require(
        machine.can_discard,
        "Discard",
        "this policy publishes blocks before they are written",
        "complete the plan",
    )
    plan, rest = state.in_flight[-1], state.in_flight[:-1]
    pool, running = state.pool, list(state.running)
    for entry in plan.entries:
        place = next((i for i, r in enumerate(running) if r.id == entry.id), None)
        if place is None or entry.cancelled:
            continue
        request = running[place]
        keep = len(request.table) - choose.returned_blocks(machine.policy, entry.new_blocks)
        pool = blocks.release(pool, machine.policy, request.table[keep:]).pool
        running[place] = evolve(
            request,
            computed=entry.start,
            table=request.table[:keep],
            prefilling=entry.was_prefilling,
        )
    for table in plan.deferred:
        pool = blocks.release(pool, machine.policy, table).pool
    return Transition(State(pool, state.waiting, tuple(running), rest))


@rule("30", engine="Scheduler.finish_requests")
def abort(machine: Machine, state: State, action: Abort) -> Transition:
    """An abort takes a request out wherever it is and frees its table; what it published stays
    findable. An id that is unknown, or has ended, is no error and changes nothing."""
    request = state.find(action.id)
    if request is None:
        return Transition(state)
    pool, in_flight = let_go(state.pool, machine.policy, state.in_flight, request)
    left = State(
        pool,
        tuple(r for r in state.waiting if r is not request),
        tuple(r for r in state.running if r is not request),
        in_flight,
    )
    return Transition(_ranked(left), (Finished(action.id, Reason.ABORT),))


@rule("9", "31", engine="Scheduler.reset_prefix_cache")
def reset_cache(machine: Machine, state: State, action: ResetCache) -> Transition:
    """A reset is refused, and changes nothing, unless all blocks are free. Asked to preempt what
    runs, it first sends back every running request, the last one first, so that they wait in
    running order."""
    cleared, events = state, list[Event]()
    if choose.preempts_for_reset(machine.policy, action.preempt_running):
        for index in reversed(range(len(state.running))):
            events.append(Preempted(state.running[index].id))
            cleared = sent_back(cleared, machine.policy, index)
    if len(cleared.pool.free) < usable_blocks(machine.config, machine.policy):
        return Transition(state, (Refused("reset", Reason.HELD),))
    emptied = blocks.clear(cleared.pool, machine.policy)
    moved = State(emptied.pool, cleared.waiting, cleared.running, cleared.in_flight)
    return Transition(moved, (*events, *emptied.events))


def _ranked(state: State) -> State:
    """Arrival is a rank: when somebody leaves, the younger ones move up."""
    ranks = {a: i for i, a in enumerate(sorted({r.arrival for r in state.live}))}

    def ranked(requests: Iterable[Request]) -> tuple[Request, ...]:
        return tuple(
            r if ranks[r.arrival] == r.arrival else evolve(r, arrival=ranks[r.arrival])
            for r in requests
        )

    return evolve(state, waiting=ranked(state.waiting), running=ranked(state.running))


__all__ = [
    "Abort",
    "Action",
    "Complete",
    "Discard",
    "Machine",
    "Output",
    "ResetCache",
    "Schedule",
    "State",
    "Submit",
    "Transition",
    "Universe",
    "acceptable",
    "fits_alone",
    "refused",
    "written",
]
