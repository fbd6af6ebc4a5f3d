"""The fast engine refines the specification: REF-1 and REF-2, asked after every action.

Theory of operation. Two engines go along with the machine. One has come the whole way. After every
action its abstraction must be the machine's state without content, its events the machine's, its
representation sound (REF-1). The other one is built anew from an abstraction every few actions and
goes the same way from there: it must stay equal (REF-2), so nothing that matters is hidden outside
of what the abstraction shows. An action that the machine refuses, the engine refuses as well, and
is left as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from copy import copy, deepcopy

from attrs import define, field

from servecheck import __version__
from servecheck.engines.fast.abstraction import abstraction, from_state
from servecheck.engines.fast.engine import FastEngine
from servecheck.engines.fast.trie import Names, Run, Trie
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
    fresh: int = FRESH
    """Actions after which a new young engine is built; 1: REF-2 is asked of every state."""
    capabilities = Capabilities("fast", __version__, Level.STATE)

    def __attrs_post_init__(self) -> None:
        self.old = FastEngine(self.machine.config, self.machine.policy)
        self.young = FastEngine(self.machine.config, self.machine.policy)
        self.quiet = FastEngine(self.machine.config, self.machine.policy, tells=False)
        self.comparison = Comparison.of(self.machine.policy)

    def branch(self) -> Refinement:
        """The same engines once more, to go another way from here. What is counted is shared."""
        shared: dict[int, object] = {}
        for engine in (self.old, self.young, self.quiet):
            for value in (engine.config, engine.policy, engine.machine):
                shared[id(value)] = value
        other = copy(self)
        other.old, other.quiet = deepcopy((self.old, self.quiet), shared)
        if self.done % self.fresh:  # else a new one is built anyhow
            other.young = deepcopy(self.young, shared)
        return other

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
        if self.done % self.fresh == 0:
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
    yield from _unsound(engine.pool.trie, [r.names for r in engine.requests.values()])


def _unsound(trie: Trie, held: list[Names]) -> Iterator[Difference]:
    """Where the tree of texts contradicts itself, or keeps what nothing needs."""
    ends = Counter(id(names.leaf) for names in held if names.leaf is not None)
    carriers: dict[int, tuple[Run, int]] = {}
    runs = list(trie.roots.values())
    while runs:
        run = runs.pop()
        runs += run.children.values()
        if run.ends != ends[id(run)]:
            yield Difference("requests that end with a run", ends[id(run)], run.ends)
        for place in range(run.start, run.stop):
            carriers |= dict.fromkeys(run.copies(place), (run, place))
        if run.others is not None and not run.others:
            yield Difference("copies of a run", None, run.others)
        if run.parent is None:
            if run.blocks or run.ends or not run.children:
                yield Difference("a root that nothing needs", "gone", run.text.namespace)
            continue
        size, tokens = run.text.size, run.text.tokens
        first = tuple(tokens[run.start * size : (run.start + 1) * size])
        if not run.blocks or first != run.key or run.parent.children.get(run.key) is not run:
            yield Difference("first block of a run", run.key, first)
        if len(tokens) < run.stop * size:
            yield Difference("tokens of a run", run.stop * size, len(tokens))
        needed = max((i + 1 for i, block in enumerate(run.blocks) if block >= 0), default=0)
        if not (run.ends or run.children or 0 < len(run.blocks) <= 2 * needed):
            yield Difference("places that nothing needs", needed, len(run.blocks))
    for block, carried in enumerate(trie.carried):
        seen = None if carried is None else (carried, trie.places[block])
        if seen != carriers.get(block):
            yield Difference(f"name of block {block}", carriers.get(block), seen)
    for names in held:
        count = sum(len(run.blocks) for run in trie.path(names))
        if count != names.count:
            yield Difference("full blocks of a text", names.count, count)
