"""The fast engine refines the specification: REF-1 and REF-2, asked after every action.

Theory of operation. Two engines go along with the machine. One has come the whole way. After every
action its abstraction must be the machine's state without content, its events the machine's, its
representation sound (REF-1). The other one is built anew from an abstraction every few actions and
goes the same way from there: it must stay equal (REF-2), so nothing that matters is hidden outside
of what the abstraction shows. An action that the machine refuses, the engine refuses as well, and
is left as it was.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import define, field

from servecheck import __version__
from servecheck.engines.fast.abstraction import abstraction, from_state
from servecheck.engines.fast.engine import FastEngine
from servecheck.engines.protocol import Capabilities, Level
from servecheck.lockstep.adopt import NotAdoptable
from servecheck.lockstep.compare import Comparison, Difference
from servecheck.lockstep.follow import Diverged, Divergence
from servespec.actions import Action
from servespec.errors import ActionDisabled
from servespec.machine import Machine
from servespec.plan import State
from servespec.properties import Step
from servespec.properties.reports import without_ghosts

FRESH = 9
"""Actions that an engine built from a state goes along, before another is built."""

PARTS = ("pool", "waiting", "running", "in_flight")
"""Of a state."""


@define
class Refinement:
    """The fast engine, and a younger one, beside a machine."""

    machine: Machine
    old: FastEngine = field(init=False)
    young: FastEngine = field(init=False)
    quiet: FastEngine = field(init=False)
    """One that tells of its cache only, and goes the whole way too."""
    done: int = 0
    comparison: Comparison = field(init=False)
    """Counts the parts that were compared."""
    capabilities = Capabilities("fast", __version__, Level.STATE)

    def __attrs_post_init__(self) -> None:
        self.old = FastEngine(self.machine.config, self.machine.policy)
        self.young = FastEngine(self.machine.config, self.machine.policy)
        self.quiet = FastEngine(self.machine.config, self.machine.policy, tells=False)
        self.comparison = Comparison.of(self.machine.policy)

    def allows(self, machine: Machine, state: State, action: Action) -> bool:
        return True

    def follow(self, step: Step) -> None:
        found = tuple(self._differences(step))
        if found:
            raise Diverged(
                Divergence("fast", __version__, Level.STATE, self.done, step.action, found)
            )
        self.done += 1

    def adopt(self, step: Step) -> State:
        """A refinement has no deviations: what is not the machine's is wrong.

        Raises:
            NotAdoptable: always.
        """
        raise NotAdoptable("a refinement that deviates is none")

    def refuses(self, action: Action) -> bool:
        """The engine refuses an action, and is left as it was."""
        before = abstraction(self.old)
        try:
            self.old.apply(action)
        except ActionDisabled:
            return abstraction(self.old) == before
        return False

    def _differences(self, step: Step) -> Iterator[Difference]:
        config, policy = self.machine.config, self.machine.policy
        said = without_ghosts(step.after)
        if self.done % FRESH == 0:
            start = without_ghosts(step.before)
            self.young = from_state(config, policy, start)
            yield from _parts("from_state", start, abstraction(self.young))
        for name, engine in (("REF-1", self.old), ("REF-2", self.young)):
            told = engine.apply(step.action)
            self.comparison.compared.update((f"{name}: events", *(f"{name}: {p}" for p in PARTS)))
            if told != step.events:
                yield Difference(f"{name}: events", step.events, told)
            yield from _parts(name, said, abstraction(engine))
            yield from unsound(engine)
        self.quiet.apply(step.action)
        yield from _parts("REF-1, telling little", said, abstraction(self.quiet))


def _parts(name: str, said: State, seen: State) -> Iterator[Difference]:
    for part in PARTS:
        mine, theirs = getattr(said, part), getattr(seen, part)
        if mine != theirs:
            yield Difference(f"{name}: {part}", mine, theirs)


def unsound(engine: FastEngine) -> Iterator[Difference]:
    """Where the representation contradicts itself: links, counts, and nodes that nothing needs."""
    pool = engine.pool
    queue = pool.queue()
    if len(queue) != pool.free:
        yield Difference("free blocks counted", len(queue), pool.free)
    end, here = len(pool.ref), len(pool.ref)
    backward = []
    while (here := pool.before[here]) != end:
        backward.append(here)
    if backward[::-1] != queue:
        yield Difference("free queue backwards", queue[::-1], backward)
    held = {id(name): 0 for r in engine.requests.values() for name in r.names}
    for r in engine.requests.values():
        for name in r.names:
            held[id(name)] += 1
    nodes = list(pool.trie.roots.values())
    while nodes:
        node = nodes.pop()
        nodes += (node.children or {}).values()
        if node.held != held.get(id(node), 0):
            yield Difference("requests that hold a node", held.get(id(node), 0), node.held)
        needed = node.held or node.block >= 0 or node.children
        if not needed and node.parent is not None:
            yield Difference("a node that nothing needs", "gone", node.tokens)
