"""What scopes of the serving machine are there for: each axis is something that it reaches and the
others do not.

Theory of operation. An axis is a policy, sizes that are the smallest in which what it is there for
happens, the kinds of requests that may arrive, and what may be sampled. `servecheck.explore.scopes`
makes a scope of an axis and a size.
"""

from __future__ import annotations

from attrs import evolve, frozen

from servecheck.explore.cache import texts
from servespec.actions import Submit
from servespec.chain import PUBLIC, Namespace
from servespec.config import Config
from servespec.policy import (
    MINIATURE,
    RESERVED,
    STATIC,
    VLLM_0_33,
    Admission,
    AfterPreemption,
    FreeWalk,
    HeadOfLine,
    HitCap,
    Lookup,
    Policy,
    Publish,
    Readmission,
    Release,
    Sharing,
    StepMix,
    Victim,
    prioritised,
)


def kind(prompt: str, max_tokens: int, namespace: Namespace = PUBLIC, priority: int = 0) -> Submit:
    """A kind of request; its prompt is spelled in one-digit tokens."""
    (spelled,) = texts(prompt)
    return Submit("", spelled, max_tokens, namespace, priority)


ALICE, BOB = Namespace("a", "bc"), Namespace("ab", "c")
"""They spell the same."""
SIZES = Config(
    num_blocks=4, block_size=2, max_model_len=6, max_num_batched_tokens=3, max_num_seqs=2
)
NO_CHUNKS = evolve(SIZES, max_num_batched_tokens=6)
AFTER_STEP = evolve(VLLM_0_33, publish=Publish.AFTER_STEP)


@frozen
class Axis:
    """What a scope is there for."""

    about: str
    policy: Policy
    kinds: tuple[Submit, ...]
    config: Config = SIZES
    more: tuple[Submit, ...] = ()
    """Kinds that only the standard size has."""
    tokens: tuple[int, ...] = (0,)
    resets: tuple[bool, ...] = ()
    aborts: bool = True
    """In the tiny size; larger ones always have them."""
    nobody: bool = False
    """Somebody who is not there may be aborted, too."""
    live: int = 2
    seats: int | None = None
    """If fewer may run than live."""
    heavy: bool = False
    """Too many states for a group of tiny scopes: only by its full name, or larger."""


AXES = {
    "chunks": Axis(
        "prompts cut into chunks, shared prefixes, preemption inside a chunk, resets",
        VLLM_0_33,
        (kind("01", 2), kind("010", 2)),
        more=(kind("0101", 2),),
        resets=(False, True),
    ),
    "sampling": Axis(
        "what is sampled decides what is shared",
        VLLM_0_33,
        (kind("01", 2), kind("0", 3)),
        tokens=(0, 1),
    ),
    "namespaces": Axis(
        "the same texts in two namespaces, and a prefix in both",
        VLLM_0_33,
        (kind("01", 2, ALICE), kind("01", 2, BOB)),
        more=(kind("010", 2, ALICE),),
    ),
    "drafts": Axis(
        "one draft a step, right and wrong",
        VLLM_0_33,
        (kind("00", 3),),
        evolve(
            SIZES,
            max_num_batched_tokens=4,
            long_prefill_token_threshold=2,
            num_speculative_tokens=1,
        ),
        more=(kind("0000", 1),),
        tokens=(0, 1),
    ),
    "priority": Axis(
        "victims by priority, scheduled ones among them",
        prioritised(VLLM_0_33),
        (kind("0", 2, PUBLIC, 0), kind("0000000", 1, PUBLIC, 1)),
        Config(9, 1, 8, 3, 2, long_prefill_token_threshold=2),
        aborts=False,
    ),
    "after-step": Axis(
        "blocks are published when they are written, and steps are discarded",
        AFTER_STEP,
        (kind("01", 2), kind("010", 2)),
    ),
    "copies": Axis(
        "several copies of one key, the newest answers",
        evolve(AFTER_STEP, lookup=Lookup.NEWEST, hit_cap=HitCap.NONE, head_of_line=HeadOfLine.SKIP),
        (kind("00", 2), kind("0001", 2)),
    ),
    "prefill-first": Axis(
        "a step that admits does nothing else",
        evolve(AFTER_STEP, step_mix=StepMix.PREFILL_FIRST),
        (kind("00", 1), kind("01", 2)),
    ),
    "miniature": Axis("the article's loop", MINIATURE, (kind("01", 2), kind("010", 2)), NO_CHUNKS),
    "static": Axis("static batches", STATIC, (kind("01", 2), kind("010", 2)), NO_CHUNKS),
    "reserved": Axis("reserved memory", RESERVED, (kind("01", 2), kind("010", 2)), NO_CHUNKS),
    "full-prompt": Axis(
        "a prompt that fills the model, which is queued and can never be served",
        VLLM_0_33,
        (kind("00", 1), kind("0", 1)),
        Config(2, 2, 2, 1, 1),
    ),
    "small-pool": Axis(
        "a request that needs more blocks than there are, which is queued all the same",
        VLLM_0_33,
        (kind("00", 1), kind("0", 1)),
        Config(2, 1, 3, 1, 1),
    ),
    "no-victim": Axis(
        "nobody is preempted, so whoever finds no room waits in its place",
        evolve(VLLM_0_33, victim=Victim.NONE),
        (kind("0100", 2), kind("00000000", 1)),
        Config(7, 2, 9, 6, 3),
        aborts=False,
    ),
    "given-back": Axis(
        "victims by priority, and admissions with the tokens that they give back",
        evolve(
            prioritised(VLLM_0_33),
            admission=Admission.STEP,
            after_preemption=AfterPreemption.GO_ON,
        ),
        (kind("01000000", 2, priority=1), kind("000000", 1), kind("000", 2)),
        Config(7, 2, 10, 3, 3),
        aborts=False,
        heavy=True,
    ),
    "passed-over": Axis(
        "a head of the queue that finds no room is passed over",
        evolve(VLLM_0_33, head_of_line=HeadOfLine.SKIP),
        (kind("00", 1), kind("0", 2)),
        Config(4, 1, 4, 2, 3),
        aborts=False,
    ),
    "together": Axis(
        "two arrive together, so none is worse, and both prompts are cut into chunks",
        evolve(prioritised(VLLM_0_33), admission=Admission.STEP, sharing=Sharing.OFF),
        (kind("0000", 1), evolve(kind("0000", 1), with_last=True)),
        Config(5, 1, 6, 2, 2, long_prefill_token_threshold=1),
    ),
    "draft-budget": Axis(
        "the drafts of those in front use up the budget of those behind",
        VLLM_0_33,
        (kind("0", 2), kind("0000", 1)),
        Config(6, 2, 5, 4, 3, long_prefill_token_threshold=2, num_speculative_tokens=1),
        aborts=False,
    ),
    "deadlock": Axis(
        "nobody is preempted, and two want the block that the other one holds",
        evolve(MINIATURE, victim=Victim.NONE),
        (kind("0", 2), kind("1", 2)),
        Config(2, 1, 3, 2, 2),
    ),
    "uncut": Axis(
        "prompts are not cut into chunks, and some are longer than a pass",
        evolve(VLLM_0_33, chunked_prefill=False),
        (kind("00", 1), kind("0", 1)),
        Config(3, 1, 3, 1, 1),
    ),
    "edges": Axis(
        "one seat, stop tokens among drafts, a prompt that is too long, aborts of nobody",
        VLLM_0_33,
        (evolve(kind("0", 2), stop=(1,)), kind("0000000", 1)),
        evolve(SIZES, num_speculative_tokens=1),
        tokens=(0, 1),
        nobody=True,
        seats=1,
    ),
    "refused": Axis(
        "a request that can never fit is turned away",
        MINIATURE,
        (kind("00", 2), kind("00000", 4)),
        Config(3, 2, 10, 10, 2),
    ),
    "to-the-tail": Axis(
        "whoever is preempted waits behind the others",
        evolve(VLLM_0_33, readmission=Readmission.TAIL, admission=Admission.STEP),
        (kind("0", 2), kind("00", 2)),
        Config(4, 1, 4, 4, 3),
        aborts=False,
        live=3,
    ),
    "seats-end": Axis(
        "one gives way, and somebody else takes its seat, which is the last",
        evolve(
            VLLM_0_33,
            readmission=Readmission.TAIL,
            after_preemption=AfterPreemption.GO_ON,
        ),
        (kind("0", 2),),
        Config(4, 1, 4, 4, 2),
        aborts=False,
        live=3,
        seats=2,
    ),
    "last-of-priority": Axis(
        "the queue is ordered by priority, victims are the last admitted",
        evolve(prioritised(VLLM_0_33), victim=Victim.LAST_ADMITTED, admission=Admission.STEP),
        (kind("0", 3, PUBLIC, 0), kind("0", 3, PUBLIC, 1)),
        Config(4, 1, 4, 3, 3),
        aborts=False,
    ),
    "deferred": Axis(
        "tables are held until the step in flight is done, freed from their first block, and some "
        "blocks stay free",
        evolve(AFTER_STEP, release=Release.DEFERRED, free_walk=FreeWalk.HEAD_FIRST),
        (kind("0", 1), kind("01", 2), kind("0101", 1)),
        evolve(SIZES, max_num_batched_tokens=4, watermark=0.25),
    ),
    "two-drafts": Axis(
        "two drafts a step, of which one may be right, and slots taken ahead of them",
        VLLM_0_33,
        (kind("0", 3),),
        evolve(SIZES, num_speculative_tokens=2, num_lookahead_tokens=2),
    ),
    "two-tenants": Axis(
        "three run, and the tokens that a victim gives back admit somebody of another namespace",
        evolve(prioritised(VLLM_0_33), after_preemption=AfterPreemption.GO_ON),
        (kind("0", 3, ALICE, 0), kind("0", 3, BOB, 1)),
        Config(5, 1, 4, 2, 3),
        aborts=False,
    ),
}
