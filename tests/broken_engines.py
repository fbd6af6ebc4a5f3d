"""Engines with one fault each: ten entries of the zoo, as factories that a command can name.

Each is an engine factory (`servecheck.engines.protocol`); `FAULTS` names them. Those at the end do
not decide wrongly but cannot be checked, or only in part.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import evolve

from servecheck.engines.fast.adapters import FastLoop
from servecheck.engines.protocol import (
    Capabilities,
    EngineGone,
    Level,
    SeenPlan,
    Unsupported,
    Verb,
)
from servecheck.engines.whole import MakeWhole
from servecheck.zoo import ENTRIES
from servespec.config import Config
from servespec.policy import VLLM_0_33, Policy


class Faulty(FastLoop):
    """The fast engine with the fault of an entry of the zoo, under a name to be made by."""

    entry: ClassVar[str]

    def __init__(self, config: Config, policy: Policy) -> None:
        self.engine = ENTRIES[self.entry].parts.build(config, policy)


class HitStaysFree(Faulty):
    """A hit is left in the free queue."""

    entry = "hit-stays-free"


class HeadFirst(Faulty):
    """A table is released from the other end."""

    entry = "parents-first"


class StaleIndex(Faulty):
    """The index entry of an evicted block stays."""

    entry = "stale-index"


class CopyForgotten(Faulty):
    """The index entry is deleted although a copy lives."""

    entry = "copy-forgotten"


class Parentless(Faulty):
    """The name of a block leaves its parent out."""

    entry = "parentless"


class SaltOnce(Faulty):
    """The salt is in the name of the first block only."""

    entry = "not-chained"


class WholeHit(Faulty):
    """Hits are capped at n tokens instead of n - 1."""

    entry = "whole-text-is-hit"


class BudgetLost(Faulty):
    """The budget of a victim that was scheduled in this pass is not given back."""

    entry = "budget-lost"


class DraftsPublished(Faulty):
    """What is published after a step counts rejected drafts."""

    entry = "drafts-published"


class ToTheTail(Faulty):
    """A preempted request waits at the tail."""

    entry = "to-the-tail"


FAULTS: tuple[type[Faulty], ...] = (
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


def whole(fault: type[Faulty]) -> MakeWhole:
    """Makes engines with a fault that are driven by actions."""
    return ENTRIES[fault.entry].whole()


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
