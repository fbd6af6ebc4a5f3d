"""Engines with one fault each: the fast engine, wrong in one place, as real engines were.

Each is an engine factory (`servecheck.engines.protocol`); `FAULTS` names them. Those at the end do
not decide wrongly but cannot be checked, or only in part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import evolve

from servecheck.engines.fast.adapters import FastLoop
from servecheck.engines.fast.engine import FastEngine
from servecheck.engines.fast.log import REMOVED
from servecheck.engines.fast.passes import Pass
from servecheck.engines.fast.plan import FastPlan, FastRequest
from servecheck.engines.fast.pool import FastPool
from servecheck.engines.fast.trie import Names, Run, Trie
from servecheck.engines.protocol import (
    Capabilities,
    EngineGone,
    Level,
    SeenPlan,
    Unsupported,
    Verb,
)
from servecheck.engines.whole import FastWhole, MakeWhole
from servespec.chain import PUBLIC, Namespace, Tokens
from servespec.config import Config
from servespec.events import Reason
from servespec.policy import VLLM_0_33, HitCap, Policy

# --- the pool ------------------------------------------------------------------------------


class _HitStaysFree(FastPool):
    def acquire(self, hits: Sequence[int]) -> None:
        for block in hits:
            self.ref[block] += 1


class HitStaysFree(FastLoop):
    """A hit is left in the free queue."""

    def __init__(self, config: Config, policy: Policy) -> None:
        super().__init__(config, policy)
        self.engine.pool = _HitStaysFree(config, policy, self.engine.log)


class HeadFirst(FastLoop):
    """A table is released from the other end."""

    def __init__(self, config: Config, policy: Policy) -> None:
        super().__init__(config, policy)
        self.engine.pool.tail_first = not self.engine.pool.tail_first


class _StaleIndex(FastPool):
    def _evict(self, blocks: list[int]) -> None:
        for block in blocks:
            run = self.trie.carried[block]
            if run is not None:
                self.log.append((REMOVED, [block], run.text, self.trie.places[block]))
                self.trie.carried[block] = None


class StaleIndex(FastLoop):
    """The index entry of an evicted block stays."""

    def __init__(self, config: Config, policy: Policy) -> None:
        super().__init__(config, policy)
        self.engine.pool = _StaleIndex(config, policy, self.engine.log)


class _CopyForgotten(FastPool):
    def _evict(self, blocks: list[int]) -> None:
        for block in blocks:
            run, place = self.trie.carried[block], self.trie.places[block]
            if run is not None:
                self.trie.carried[block] = None
                self.log.append((REMOVED, [block], run.text, place))
                run.blocks[place - run.start] = -1
                run.others = None


class CopyForgotten(FastLoop):
    """The index entry is deleted although a copy lives."""

    def __init__(self, config: Config, policy: Policy) -> None:
        super().__init__(config, policy)
        self.engine.pool = _CopyForgotten(config, policy, self.engine.log)


# --- names ---------------------------------------------------------------------------------


class _Parentless(Trie):
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


class Parentless(FastLoop):
    """The name of a block leaves its parent out."""

    def __init__(self, config: Config, policy: Policy) -> None:
        super().__init__(config, policy)
        self.engine.pool.trie = _Parentless(config.num_blocks)


class _SaltOnce(Trie):
    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.first: dict[Names, tuple[Names, Names]] = {}

    def extend(self, names: Names, namespace: Namespace, text: list[int], size: int) -> None:
        if len(text) >= size and names not in self.first:
            salted, unsalted = self.first[names] = Names(), Names()
            super().extend(salted, namespace, text[:size], size)
            super().extend(unsalted, PUBLIC, text[:size], size)
        super().extend(names, PUBLIC, text, size)

    def path(self, names: Names) -> Iterator[Run]:
        if names in self.first:
            yield from list(super().path(names))[:-1]
            names, _ = self.first[names]
        yield from super().path(names)

    def drop(self, names: Names) -> None:
        for block in self.first.pop(names, ()):
            super().drop(block)
        super().drop(names)


class SaltOnce(FastLoop):
    """The salt is in the name of the first block only."""

    def __init__(self, config: Config, policy: Policy) -> None:
        super().__init__(config, policy)
        self.engine.pool.trie = _SaltOnce(config.num_blocks)


# --- the scheduler -------------------------------------------------------------------------


class WholeHit(FastLoop):
    """Hits are capped at n tokens instead of n - 1."""

    def __init__(self, config: Config, policy: Policy) -> None:
        super().__init__(config, policy)
        self.engine.policy = evolve(policy, hit_cap=HitCap.NONE)


class _BudgetLostPass(Pass):
    def preempt(self, index: int) -> None:
        left = self.left
        super().preempt(index)
        self.left = left


class _BudgetLost(FastEngine):
    def schedule(self) -> FastPlan:
        plan = FastPlan()
        _BudgetLostPass(self, plan).run()
        self.in_flight.append(plan)
        return plan


class BudgetLost(FastLoop):
    """The budget of a victim that was scheduled in this pass is not given back."""

    def __init__(self, config: Config, policy: Policy) -> None:
        self.engine = _BudgetLost(config, policy)


class _DraftsPublished(FastEngine):
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


class DraftsPublished(FastLoop):
    """What is published after a step counts rejected drafts."""

    def __init__(self, config: Config, policy: Policy) -> None:
        self.engine = _DraftsPublished(config, policy)


class _ToTheTail(FastEngine):
    def _wait(self, request: FastRequest, preempted: bool) -> None:
        super()._wait(request, preempted=False)


class ToTheTail(FastLoop):
    """A preempted request waits at the tail."""

    def __init__(self, config: Config, policy: Policy) -> None:
        self.engine = _ToTheTail(config, policy)


FAULTS: tuple[type[FastLoop], ...] = (
    HitStaysFree,
    Parentless,
    HeadFirst,
    StaleIndex,
    CopyForgotten,
    WholeHit,
    BudgetLost,
    DraftsPublished,
    SaltOnce,
    ToTheTail,
)


def whole(fault: type[FastLoop]) -> MakeWhole:
    """Makes engines with a fault that are driven by actions, as `servecheck.engines.whole`."""
    return lambda machine: FastWhole(machine, fault(machine.config, machine.policy).engine)


# --- engines that cannot be checked ----------------------------------------------------------


class Whimsical(FastLoop):
    """Every other engine of this kind releases head first: it does not do the same twice."""

    made = 0

    def __init__(self, config: Config, policy: Policy) -> None:
        super().__init__(config, policy)
        Whimsical.made += 1
        if Whimsical.made % 2:
            self.engine.pool.tail_first = not self.engine.pool.tail_first


class Mortal(FastLoop):
    """It is gone at the second plan."""

    plans = 0

    def schedule(self) -> SeenPlan:
        self.plans += 1
        if self.plans == 2:
            raise EngineGone("the lights went out")
        return super().schedule()


class Picky(FastLoop):
    """It is one profile, with one switch, and does not speculate; two of its sizes may be any, but
    not the same."""

    capabilities = Capabilities("picky", "1.2.3", Level.STATE, frozenset({Verb.DRAFTS}))

    def __init__(self, config: Config, policy: Policy) -> None:
        if evolve(policy, chunked_prefill=True) != VLLM_0_33:
            raise Unsupported("policy: this is VLLM_0_33, with or without chunks")
        if config.num_blocks > 8:
            raise Unsupported(f"num_blocks: at most 8, and this is {config.num_blocks}")
        if config.max_num_batched_tokens == config.max_num_seqs:
            raise Unsupported("max_num_batched_tokens: more or less than max_num_seqs")
        super().__init__(config, policy)


class Nobody(FastLoop):
    """It takes nothing at all."""

    def __init__(self, config: Config, policy: Policy) -> None:
        raise Unsupported("policy: there is none that I take")


class Liar:
    """It says that its state can be read, and has no methods."""

    capabilities = Capabilities("liar", "0", Level.STATE)

    def __init__(self, config: Config, policy: Policy) -> None:
        pass


class Stillborn:
    """It cannot be made."""

    def __init__(self, config: Config, policy: Policy) -> None:
        raise RuntimeError("no memory was given")


def no_engine(config: Config, policy: Policy) -> int:
    """It makes what is no engine."""
    return config.num_blocks


NO_FACTORY = 7


class Sixteen(FastLoop):
    """Its blocks have 16 tokens, its limits are those of a big machine."""

    capabilities = Capabilities("sixteen", "1", Level.STATE)

    def __init__(self, config: Config, policy: Policy) -> None:
        if config.block_size != 16:
            raise Unsupported(f"block_size: only 16, and this is {config.block_size}")
        if config.max_num_batched_tokens < 512:
            raise Unsupported("max_num_batched_tokens: at least 512")
        super().__init__(config, policy)
