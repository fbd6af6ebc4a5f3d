"""Engines with one fault each: the fast engine, wrong in one place, as real engines were.

Each is an engine factory (`servecheck.engines.protocol`); `FAULTS` names them. Those at the end do
not decide wrongly but cannot be checked, or only in part.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from servecheck.engines.fast.adapters import FastLoop
from servecheck.engines.fast.engine import (
    FastEngine,
    FastPlan,
    FastPlanned,
    FastRequest,
    _Pass,
)
from servecheck.engines.fast.pool import REMOVED, FastPool
from servecheck.engines.fast.trie import Node, Trie
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
    def _evict(self, block: int) -> None:
        self.log.append((REMOVED, block, self.names[block]))
        self.names[block] = None


class StaleIndex(FastLoop):
    """The index entry of an evicted block stays."""

    def __init__(self, config: Config, policy: Policy) -> None:
        super().__init__(config, policy)
        self.engine.pool = _StaleIndex(config, policy, self.engine.log)


class _CopyForgotten(FastPool):
    def _evict(self, block: int) -> None:
        name = self.names[block]
        if name is not None:
            self.names[block] = None
            self.log.append((REMOVED, block, name))
            name.block = -1
            if name.others:
                name.others.clear()


class CopyForgotten(FastLoop):
    """The index entry is deleted although a copy lives."""

    def __init__(self, config: Config, policy: Policy) -> None:
        super().__init__(config, policy)
        self.engine.pool = _CopyForgotten(config, policy, self.engine.log)


# --- names ---------------------------------------------------------------------------------


class _Parentless(Trie):
    def extend(
        self, known: list[Node], namespace: Namespace, text: Sequence[int], size: int
    ) -> None:
        for start in range(len(known) * size, len(text) - size + 1, size):
            alone: list[Node] = []
            super().extend(alone, namespace, text[start : start + size], size)
            known += alone


class Parentless(FastLoop):
    """The name of a block leaves its parent out."""

    def __init__(self, config: Config, policy: Policy) -> None:
        super().__init__(config, policy)
        self.engine.pool.trie = _Parentless()


class _SaltOnce(Trie):
    def extend(
        self, known: list[Node], namespace: Namespace, text: Sequence[int], size: int
    ) -> None:
        for stop in range((len(known) + 1) * size, len(text) + 1, size):
            whole: list[Node] = []
            super().extend(whole, PUBLIC if stop > size else namespace, text[:stop], size)
            known.append(whole.pop())
            self.drop(whole)


class SaltOnce(FastLoop):
    """The salt is in the name of the first block only."""

    def __init__(self, config: Config, policy: Policy) -> None:
        super().__init__(config, policy)
        self.engine.pool.trie = _SaltOnce()


# --- the scheduler -------------------------------------------------------------------------


class WholeHit(FastLoop):
    """Hits are capped at n tokens instead of n - 1."""

    def __init__(self, config: Config, policy: Policy) -> None:
        super().__init__(config, policy)
        self.engine.policy = evolve(policy, hit_cap=HitCap.NONE)


class _BudgetLostPass(_Pass):
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
    planned: FastPlanned | None = None

    def _until_end(
        self, request: FastRequest, entry: FastPlanned, tokens: Tokens
    ) -> tuple[Tokens, Reason | None]:
        self.planned = entry
        return super()._until_end(request, entry, tokens)

    def _publish(self, request: FastRequest, tokens: int) -> None:
        planned, self.planned = self.planned, None
        if planned is not None and planned.request is request:
            tokens = planned.stop
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
    """It is one profile, with one switch, and does not speculate."""

    capabilities = Capabilities("picky", "1.2.3", Level.STATE, frozenset({Verb.DRAFTS}))

    def __init__(self, config: Config, policy: Policy) -> None:
        if evolve(policy, chunked_prefill=True) != VLLM_0_33:
            raise Unsupported("policy: this is VLLM_0_33, with or without chunks")
        if config.num_blocks > 8:
            raise Unsupported(f"num_blocks: at most 8, and this is {config.num_blocks}")
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
