"""The serving machine as a system that can be searched.

Theory of operation. What may arrive is a finite list of *kinds* of request; at most `live` of them
are there at once, so the state is bounded by prompts and outputs. Ids are slots that are used
again: an arrival gets the first that nobody has. Everything else is the machine's own: the same
`apply`, the same outcomes of a plan.

Where requests may arrive together and are ordered by priority, the id decides which of them goes
first: then ids are no mere names, and a key keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from attrs import evolve, field, frozen

from servecheck.explore.codec import Codec, Names
from servespec.actions import Abort, Action, Discard, ResetCache, Schedule, Submit
from servespec.chain import Tokens
from servespec.machine import Machine, Transition
from servespec.plan import Plan, Planned, State
from servespec.policy import Order
from servespec.properties import Renaming
from servespec.request import Request

IDS = tuple("abcdefghijklmnopqrstuvwxyz")


@frozen
class Serving:
    """A serving machine in which a bounded number of requests of some kinds live."""

    machine: Machine
    kinds: tuple[Submit, ...]
    """What may arrive; the ids do not matter."""
    live: int
    tokens: Tokens = (0,)
    """What may be sampled and drafted."""
    aborts: bool = True
    nobody: bool = False
    """Somebody who is not there may be aborted, too."""
    resets: tuple[bool, ...] = ()
    """Resets that may be asked for: with `preempt_running` or without."""
    discards: bool = True
    any_token: bool = False
    any_namespace: bool = False
    _codec: Codec = field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        namespaces = tuple(dict.fromkeys(kind.namespace for kind in self.kinds))
        names = Names(namespaces, IDS[: self.live + 1], self.any_token, self.any_namespace)
        codec = Codec(self.machine.config, self.machine.policy, names)
        object.__setattr__(self, "_codec", codec)

    def initial(self) -> State:
        return self.machine.initial()

    def enabled(self, state: State) -> Iterator[Action]:
        if len(state.in_flight) < self.machine.config.max_steps_in_flight:
            yield Schedule()
        if state.in_flight:
            yield from self.machine.completions(state.in_flight[0], self.tokens)
            if self.discards and self.machine.can_discard:
                yield Discard()
        if len(state.live) < self.live:
            taken = {request.id for request in state.live}
            free = next(i for i in IDS if i not in taken)
            for kind in self.kinds:
                yield evolve(kind, id=free)
        if self.aborts:
            for request in state.live:
                yield Abort(request.id)
        if self.nobody:
            yield Abort("nobody")
        for preempting in self.resets:
            yield ResetCache(preempting)

    def apply(self, state: State, action: Action) -> Transition:
        return self.machine.apply(state, action)

    def canonical(self, state: State) -> bytes:
        return self._codec.key(state) + self._kept(state)

    def named(self, state: State) -> tuple[bytes, Renaming]:
        """The key of a state, and the names of everything in its representative."""
        key, names = self._codec.named(state)
        if self.ids_matter:
            names = evolve(names, ids={r.id: r.id for r in state.live})
        return key + self._kept(state), names

    def restore(self, key: bytes) -> State:
        state = self._codec.state(key)
        if not self.ids_matter:
            return state
        count = len(state.live)
        return _with_ids(state, [IDS[i] for i in key[len(key) - count :]])

    @property
    def ids_matter(self) -> bool:
        """Some of those who arrive together differ in their ids only, and these order them."""
        together = any(kind.with_last for kind in self.kinds)
        return together and self.machine.policy.order is Order.PRIORITY

    def _kept(self, state: State) -> bytes:
        """What a key has besides: the ids, by place."""
        return bytes(IDS.index(r.id) for r in state.live) if self.ids_matter else b""


def _with_ids(state: State, ids: Sequence[str]) -> State:
    """The same state, whose live requests are called so, by place."""
    names = dict(zip((r.id for r in state.live), ids, strict=True))

    def requests(there: Iterable[Request]) -> tuple[Request, ...]:
        return tuple(evolve(r, id=names[r.id]) for r in there)

    def entries(plan: Plan) -> tuple[Planned, ...]:
        return tuple(evolve(e, id=names.get(e.id, e.id)) for e in plan.entries)

    plans = tuple(evolve(plan, entries=entries(plan)) for plan in state.in_flight)
    return State(state.pool, requests(state.waiting), requests(state.running), plans)
