"""Faults of sharing: what is found, under which name, and when it can be found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import evolve

from servecheck.engines.fast.engine import FastEngine
from servecheck.engines.fast.log import Entry
from servecheck.engines.fast.passes import Pass
from servecheck.engines.fast.plan import FastRequest
from servecheck.engines.fast.pool import FastPool
from servecheck.engines.fast.trie import Names, Run, Trie
from servecheck.zoo.entry import fault
from servespec.chain import Namespace, Tokens
from servespec.config import Config
from servespec.events import Reason
from servespec.policy import HitCap, Policy

# --- what is found ---------------------------------------------------------------------------


@fault("walk-past-mismatch", expects="CON-2", needs="a prefix with a hole in it")
class PastTheMismatch(Trie):
    """The look-up goes on behind the first block that is missing.

    Blocks are put together that do not follow each other: output drifts, with no error.
    """

    def match(self, names: Names, limit: int, newest: bool) -> list[int]:
        runs = reversed(tuple(self.path(names)))
        return [block for run in runs for block in run.blocks if block >= 0][:limit]


@fault("off-by-one", expects="CON-2", needs="a text that is cached to its last token")
class WholeTextIsHit(FastEngine):
    """A hit may cover the whole text.

    Nothing is left to compute, so there is nothing to sample from: the engine dies.
    """

    def __init__(self, config: Config, policy: Policy, *, tells: bool = True) -> None:
        super().__init__(config, policy, tells=tells)
        self.policy = evolve(policy, hit_cap=HitCap.NONE)


@fault("off-by-one", expects="CON-2", needs="a text shorter than a block, and a cached block")
class EmptyTextIsHit(Trie):
    """A text without a full block finds the root, and with it what was used last.

    Emptiness was tested before the text was cut to whole blocks.
    """

    def match(self, names: Names, limit: int, newest: bool) -> list[int]:
        if names.count:
            return super().match(names, limit, newest)
        return [block for block, run in enumerate(self.carried) if run is not None][-1:]


@fault("policy-quality", expects="CON-2", needs="two texts one after the other")
class TextBeforeIsLookedUp(FastPool):
    """The look-up compares with the text before this one.

    The wrong cache is chosen, or one that has nothing in common.
    """

    def __init__(self, config: Config, policy: Policy, log: list[Entry]) -> None:
        super().__init__(config, policy, log)
        self.before_it: Names | None = None

    def match(self, names: Names, limit: int) -> list[int]:
        asked, self.before_it = self.before_it or names, names
        return super().match(asked, limit)


@fault("event-consumer-fold", expects="CON-2", needs="a hit on a part of a text")
class LongestOrNothing(Trie):
    """Only the whole text is looked up, none of its beginnings.

    A query of another length than what was stored finds nothing.
    """

    def match(self, names: Names, limit: int, newest: bool) -> list[int]:
        found = super().match(names, limit, newest)
        return found if len(found) == min(names.count, limit) else []


@fault("computed-counter-wrong", expects="CON-2", needs="somebody preempted who had hits")
class FirstHitRemembered(FastPool):
    """The length of the first hit is remembered, and taken for that of a later one.

    After a preemption more is cached than at first, and what is still needed comes out negative.
    """

    def __init__(self, config: Config, policy: Policy, log: list[Entry]) -> None:
        super().__init__(config, policy, log)
        self.lengths: dict[Names, int] = {}

    def match(self, names: Names, limit: int) -> list[int]:
        found = super().match(names, limit)
        return found[: self.lengths.setdefault(names, len(found))]


@fault("latched-or-ghost-state", expects="PUB-1", needs="sharing off")
class NamesThoughOff(FastEngine):
    """Blocks are named although the cache is off: the flag is not looked at.

    What is registered nobody expects.
    """

    def __init__(self, config: Config, policy: Policy, *, tells: bool = True) -> None:
        super().__init__(config, policy, tells=tells)
        self.shares = True


@fault("double-release", expects="OWN-2", needs="sharing off")
class WithoutCacheAllIsThere(FastEngine):
    """With the cache off, storing a text says that all of it is there already.

    The caller lets go of its own blocks as duplicates, and still reads them.
    """

    def take_in(self, sampled: Sequence[Tokens], drafts: Sequence[Tokens] = ()) -> None:
        plan = self.in_flight[0] if self.in_flight else None
        super().take_in(sampled, drafts)
        for request in plan.requests if plan is not None and not self.shares else ():
            self.pool.release(request.table[: request.computed // self.size])


# --- names -----------------------------------------------------------------------------------


@fault("identity-collision", expects="IDX-3", needs="two blocks of the same tokens, ordered apart")
class HashCollides(Trie):
    """Two contents have one hash, and equality of hashes is taken for equality of content.

    Whoever can make texts collide is served what others wrote.
    """

    def extend(self, names: Names, namespace: Namespace, text: list[int], size: int) -> None:
        weak = [t for at in range(0, len(text), size) for t in sorted(text[at : at + size])]
        super().extend(names, namespace, weak, size)


@fault("identity-collision", expects="IDX-3", needs="equal blocks behind different ones")
class Parentless(Trie):
    """The name of a block leaves out what stands before it.

    Equal blocks at different places are one to the cache.
    """

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.alone: dict[Names, list[Names]] = {}

    def extend(self, names: Names, namespace: Namespace, text: list[int], size: int) -> None:
        for start in range(names.count * size, len(text) - size + 1, size):
            block = Names()
            super().extend(block, namespace, text[start : start + size], size)
            self.alone.setdefault(names, []).append(block)
            names.count += 1

    def path(self, names: Names) -> Iterator[Run]:
        for block in reversed(self.alone.get(names, [names])):
            yield from super().path(block)

    def drop(self, names: Names) -> None:
        for block in self.alone.pop(names, ()):
            super().drop(block)


# --- when it can be found ----------------------------------------------------------------------


@fault("publish-before-written", expects="PUB-1", needs="published after the step")
class PublishedWithAllocation(FastEngine):
    """Blocks can be found as soon as they are allocated.

    A second request of the same batch, or one after an abort, hits what was never written.
    """

    def __init__(self, config: Config, policy: Policy, *, tells: bool = True) -> None:
        super().__init__(config, policy, tells=tells)
        self.early = True


@fault("publish-before-written", expects="PUB-1", needs="a prompt in chunks")
class WholePromptPublished(FastEngine):
    """What can be found is counted from the length of the prompt, not from what is computed.

    Blocks of later chunks are found before they are written.
    """

    def _publish(self, request: FastRequest, tokens: int) -> None:
        held = len(request.table) * self.size
        super()._publish(request, max(tokens, min(request.names.count * self.size, held)))


@fault("publish-unstable-content", expects="PUB-1", needs="rejected drafts at the end of a block")
class DraftsPublished(FastEngine):
    """What is published after a step counts drafts that were rejected.

    A block is found whose last tokens are nobody's.
    """

    planned: tuple[FastRequest, int] | None = None

    def _until_end(
        self, request: FastRequest, drafts: Tokens, tokens: Tokens
    ) -> tuple[Tokens, Reason | None]:
        self.planned = request, request.computed
        return super()._until_end(request, drafts, tokens)

    def _publish(self, request: FastRequest, tokens: int) -> None:
        planned, self.planned = self.planned, None
        if planned is not None and planned[0] is request:
            tokens = planned[1]
        super()._publish(request, tokens)


@fault("mirror-desync", expects="PUB-1", needs="an output that fills a block")
class OutputsNotPublished(FastEngine):
    """Only blocks of the prompt get a name.

    A conversation that goes on computes all answers again.
    """

    def _publish(self, request: FastRequest, tokens: int) -> None:
        super()._publish(request, min(tokens, request.prompt))


@fault("double-release", expects="APPLY-1", needs="a hit")
class HitsPublishedAgain(Pass):
    """A request that begins with hits counts none of its blocks as registered.

    Blocks that have a name are named again.
    """

    def book(self, request: FastRequest, stop: int, taken: tuple[int, ...], admitted: bool) -> None:
        if admitted:
            request.published = 0
        super().book(request, stop, taken, admitted)


@fault("off-by-one", expects="APPLY-1", needs="a step that fills no block")
class NamedWithoutParent(FastEngine):
    """Naming runs in steps that fill no block, and asks the block before for its name.

    It has none, and the engine stops.
    """

    def _publish(self, request: FastRequest, tokens: int) -> None:
        if self.shares and not request.names.count:
            raise LookupError("the block before has no name")
        super()._publish(request, tokens)
