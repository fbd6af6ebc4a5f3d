"""Renaming: what a machine does not tell apart, as a map on states, actions and events.

Theory of operation. Blocks, tokens and ids are names. A `Renaming` gives them others; tokens may
get them by namespace. `state`, `action` and `events` carry it through everything that holds a name:
tables, the free queue, the index, keys, contents, plans. EQV-1 says that renaming first and
stepping then is the same as stepping first and renaming then:

    s ──apply a──▶ s′
    │              │          apply(ρ s, ρ a) = ρ apply(s, a)
    ρ              ρ
    ▼              ▼
    ρ s ─apply ρ a─▶ ρ s′

That is what makes it sound to look at one state of those that differ in names, and what keeps the
tokens of one tenant from telling on another (`servespec.theory.isolation`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from attrs import evolve, field, frozen

from servespec.actions import Abort, Action, Complete, Output, Submit
from servespec.chain import Chain, Namespace, Token, Tokens, link
from servespec.config import Config
from servespec.errors import ActionDisabled, SpecError
from servespec.events import (
    Admitted,
    BlockRemoved,
    BlockStored,
    Delivered,
    Event,
    Finished,
    Preempted,
    Refused,
    Scheduled,
    Skipped,
    Submitted,
)
from servespec.machine import Machine, Transition
from servespec.plan import Plan, Planned, State
from servespec.policy import Order, Policy
from servespec.pool import Block, Blocks, Index, Pool
from servespec.request import Request
from servespec.theory.register import Kind, theorem

NamesTokens = Callable[[Namespace, Token], Token]


def same_token(namespace: Namespace, token: Token) -> Token:
    return token


@frozen
class Renaming:
    """New names; what is not renamed keeps its own.

    `tokens` must be injective in each namespace. `blocks` is a permutation.
    """

    blocks: Mapping[int, int] = field(factory=dict)
    tokens: NamesTokens = same_token
    ids: Mapping[str, str] = field(factory=dict)
    stops: bool = True
    """Stop tokens are renamed with the others. Without that EQV-1 is false, as the tests show."""
    _chains: dict[Chain, Chain] = field(init=False, factory=dict, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        for kind, names in (("blocks", self.blocks), ("ids", self.ids)):
            if set(names) != set(names.values()):
                raise SpecError(kind, f"{names} is no permutation", "map them onto themselves")

    # --- names ---

    def block(self, block: int) -> int:
        return self.blocks.get(block, block)

    def table(self, blocks: Iterable[int]) -> Blocks:
        return tuple(map(self.block, blocks))

    def id(self, id: str) -> str:
        return self.ids.get(id, id)

    def text(self, namespace: Namespace, tokens: Tokens) -> Tokens:
        """Padding stands for no token, and stays what it is."""
        return tuple(t if t < 0 else self.tokens(namespace, t) for t in tokens)

    def chain(self, chain: Chain | None) -> Chain | None:
        """A chain of the same runs, renamed."""
        unknown = []
        node = chain
        while node is not None and node not in self._chains:
            unknown.append(node)
            node = node.parent
        for node in reversed(unknown):
            parent = None if node.parent is None else self._chains[node.parent]
            self._chains[node] = link(
                node.namespace, parent, self.text(node.namespace, node.tokens)
            )
        return None if chain is None else self._chains[chain]

    def key(self, key: Chain) -> Chain:
        self.chain(key)
        return self._chains[key]

    # --- states ---

    def state(self, state: State) -> State:
        return State(
            self.pool(state.pool),
            tuple(map(self.request, state.waiting)),
            tuple(map(self.request, state.running)),
            tuple(map(self.plan, state.in_flight)),
        )

    def pool(self, pool: Pool) -> Pool:
        blocks = [Block()] * len(pool.blocks)
        for b, old in enumerate(pool.blocks):
            blocks[self.block(b)] = Block(
                old.ref_count, self.chain(old.key), tuple(map(self.chain, old.content))
            )
        copies = {self.key(key): self.table(there) for key, there in pool.index.copies.items()}
        return Pool(tuple(blocks), self.table(pool.free), Index(copies))

    def request(self, r: Request) -> Request:
        return evolve(
            r,
            id=self.id(r.id),
            prompt=self.text(r.namespace, r.prompt),
            stop=self._stop(r.namespace, r.stop),
            keys=tuple(map(self.key, r.keys)),
            output=self.text(r.namespace, r.output),
            table=self.table(r.table),
            drafts=self.text(r.namespace, r.drafts),
        )

    def _stop(self, namespace: Namespace, stop: Tokens) -> Tokens:
        return self.text(namespace, stop) if self.stops else stop

    def plan(self, plan: Plan) -> Plan:
        return Plan(tuple(map(self.entry, plan.entries)), tuple(map(self.table, plan.deferred)))

    def entry(self, e: Planned) -> Planned:
        return evolve(
            e,
            id=self.id(e.id),
            tokens=self.text(e.namespace, e.tokens),
            drafts=self.text(e.namespace, e.drafts),
            table=self.table(e.table),
        )

    # --- actions and events ---

    def action(self, action: Action, before: State) -> Action:
        """The action on the renamed state; `before` says in which namespace an output is."""
        match action:
            case Submit(id=id, prompt=prompt, namespace=namespace, stop=stop):
                return evolve(
                    action,
                    id=self.id(id),
                    prompt=self.text(namespace, prompt),
                    stop=self._stop(namespace, stop),
                )
            case Complete(outputs):
                return Complete(tuple(self._output(o, before) for o in outputs))
            case Abort(id):
                return Abort(self.id(id))
            case _:
                return action

    def _output(self, output: Output, before: State) -> Output:
        entries = (e for plan in before.in_flight for e in plan.entries if e.id == output.id)
        namespace = next(e.namespace for e in entries)
        tokens, drafts = (self.text(namespace, t) for t in (output.tokens, output.drafts))
        return Output(self.id(output.id), tokens, drafts)

    def events(self, events: Iterable[Event], before: State) -> tuple[Event, ...]:
        """Events of a transition from `before`."""
        return tuple(self.event(event, before) for event in events)

    def event(self, event: Event, before: State) -> Event:
        match event:
            case Admitted(id, _, blocks):
                return evolve(event, id=self.id(id), blocks=self.table(blocks))
            case Scheduled(id, new_blocks=blocks):
                return evolve(event, id=self.id(id), new_blocks=self.table(blocks))
            case BlockStored(block, key, parent):
                return BlockStored(self.block(block), self.key(key), self.chain(parent))
            case BlockRemoved(block, key):
                return BlockRemoved(self.block(block), self.key(key))
            case Delivered(id, _, tokens):
                request = before.find(id)
                namespace = Namespace() if request is None else request.namespace
                return evolve(event, id=self.id(id), tokens=self.text(namespace, tokens))
            case Submitted(id) | Skipped(id) | Preempted(id) | Finished(id):
                return evolve(event, id=self.id(id))
            case Refused(subject):
                return evolve(event, subject=self.id(subject))
            case _:
                return event


def tells_ids_apart(config: Config, policy: Policy) -> bool:
    """Requests of one priority and one moment of arrival are served in the order of their ids."""
    return policy.order is Order.PRIORITY


@theorem("EQV-1", Kind.H)
def unequal(machine: Machine, before: State, action: Action, renaming: Renaming) -> str | None:
    """Renaming blocks, tokens injectively, and ids, commutes with every action: the renamed state
    does what the state does, renamed, and offers what it offers. The null block keeps its name; by
    priority ids keep theirs, since they break ties; stop tokens are renamed with the others.

    Why. The machine compares tokens and keys for equality alone, takes blocks from the free queue
    by place and finds them by key, and looks at ids to find a request; none of them is ordered,
    counted or computed with, but by a tie of priorities.

    Returns what is unequal, or None.
    """
    renamed, ours = renaming.state(before), _moved(machine, before, action)
    theirs = _moved(machine, renamed, renaming.action(action, before))
    if isinstance(ours, str) or isinstance(theirs, str):
        same = isinstance(ours, str) and isinstance(theirs, str)
        return None if same else f"{action}: {ours}; renamed: {theirs}"
    if theirs.state != renaming.state(ours.state):
        return f"{action}: {theirs.state} is not the renaming of {ours.state}"
    if theirs.events != (wanted := renaming.events(ours.events, before)):
        return f"{action}: {theirs.events}, not {wanted}"
    return None


def _moved(machine: Machine, state: State, action: Action) -> Transition | str:
    try:
        return machine.apply(state, action)
    except ActionDisabled:
        return "is disabled"
