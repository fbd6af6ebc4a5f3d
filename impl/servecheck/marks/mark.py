"""The marks: each situation by name, what it means, and what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from servecheck.marks.needs import (
    ANY,
    AT_SCHEDULE,
    BLOCKS_OF_ONE,
    BY_PRIORITY,
    CAP,
    CHUNKS,
    DEFERS,
    DISCARDS,
    DRAFTS,
    GOING_ON,
    HEAD_FIRST,
    LAST_FIRST,
    LOOKAHEAD,
    NO_CAP,
    ORDERED,
    PREEMPTING,
    RESERVED,
    RESETS,
    SHARED,
    THRESHOLD,
    TWO_DRAFTS,
    WATERMARK,
    Needs,
)
from servespec.config import Config
from servespec.events import Reason
from servespec.policy import (
    AfterPreemption,
    Batching,
    HeadOfLine,
    Impossible,
    Memory,
    Order,
    Policy,
    Readmission,
    StepMix,
    Victim,
)


class Mark(Enum):
    """A situation: its meaning, and what it needs."""

    def __init__(self, meaning: str, needs: Needs = ANY) -> None:
        self.meaning = meaning
        self.needs = needs

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        # Between processes by name: the condition is code.
        return getattr, (Mark, self.name)

    # arrivals
    WHOLE_BLOCKS = "a prompt of whole blocks arrives"
    FILLS_POOL = "a prompt that needs every block of the pool arrives"
    PROMPT_TOO_LONG = "a prompt longer than max_model_len is refused"
    IMPOSSIBLE_QUEUED = (
        "a request that can never fit is queued",
        Needs("impossible requests are queued", lambda c, p: p.impossible is Impossible.QUEUE),
    )
    IMPOSSIBLE_REFUSED = (
        "a request that can never fit is refused",
        Needs("impossible requests are refused", lambda c, p: p.impossible is Impossible.REFUSE),
    )
    EQUAL_ARRIVALS = "a request arrives at the same moment as a living one"
    OVERTAKES = ("a request is queued before one that waited already", ORDERED)
    ID_REUSED_IN_FLIGHT = "an id comes back while a step of its former owner is in flight"

    # hits
    HIT_HELD = ("a look-up hits a block that somebody holds", SHARED)
    HIT_IDLE = ("a look-up hits a block that nobody holds", SHARED)
    HIT_SAME_PASS = ("a look-up hits a block published in the same pass", AT_SCHEDULE)
    HIT_AMONG_COPIES = ("a look-up hits a key that several blocks carry", SHARED)
    HIT_ENDS_INSIDE = ("a look-up hits some blocks of a text and misses the next", SHARED)
    CACHED_BUT_CAPPED = ("all blocks of a text are cached, the cap spares the last", CAP)
    CACHED_IN_PLACE = ("all of a text is cached, its last token recomputed in place", NO_CAP)
    RESUMED_HITS_OUTPUT = ("a resumed request hits blocks of its own output", SHARED)
    RESUMED_MISSES = ("a resumed request finds nothing of itself", PREEMPTING | RESETS)

    # the pool
    POOL_FULL = "a pass leaves no block free"
    EVICTION = ("a block with a key is evicted", SHARED)
    EVICTION_COPY_STAYS = ("a block is evicted while another carries its key", SHARED)
    EVICTION_OF_PARENT = ("a block is evicted while a block that continues it stays", HEAD_FIRST)
    EVICTION_SAME_PASS = (
        "a block is evicted in the pass that published it",
        AT_SCHEDULE & BY_PRIORITY,
    )
    DUPLICATE_STORED = ("a key is stored that another block carries", SHARED)
    SAME_TOKENS_APART = ("two namespaces hold the same first block", SHARED)
    SAME_SPELLING_APART = (
        "two namespaces that spell the same hold the same first block",
        SHARED,
    )
    ONE_TOKEN_BLOCK = ("a block of one token is stored", BLOCKS_OF_ONE)
    DECODE_TAKES_BLOCK = "a decode takes a block"
    SHARED_OUTLIVES = ("who leaves holds a block that another goes on holding", SHARED)

    # preemption
    PREEMPTS_DECODE = ("a decode is preempted", PREEMPTING)
    PREEMPTS_CHUNK = ("a request is preempted inside its prompt", PREEMPTING & (CHUNKS | DISCARDS))
    PREEMPTS_ITSELF = ("a request gives way to itself", PREEMPTING)
    PREEMPTS_SCHEDULED = ("a victim was already scheduled in the pass", BY_PRIORITY)
    GIVEN_BACK_SPENT = (
        "tokens that a scheduled victim gave back are spent in the pass",
        BY_PRIORITY,
    )
    PREEMPTS_DRAFTS = ("a victim loses its drafts", PREEMPTING & DRAFTS)
    PREEMPTS_BETTER = ("a victim has a better priority than who makes it give way", LAST_FIRST)
    PREEMPTS_SEVERAL = ("several give way in one pass", PREEMPTING)
    ADMITTED_SAME_PASS = ("somebody is admitted in a pass in which somebody gave way", GOING_ON)
    SEATS_END_SAME_PASS = ("seats end in a pass in which somebody gave way", GOING_ON)
    TOKENS_END_SAME_PASS = ("tokens end in a pass in which somebody gave way", PREEMPTING)
    READMITTED_SAME_PASS = ("a victim is admitted again in the same pass", GOING_ON)
    REQUEUED_BEHIND = (
        "a victim waits behind others",
        PREEMPTING
        & Needs(
            "victims go to the tail, or by priority",
            lambda c, p: p.order is Order.PRIORITY or p.readmission is Readmission.TAIL,
        ),
    )

    # a pass
    EMPTY_PASS = "a pass has nobody to serve"
    STARVED_PASS = "a pass schedules nobody, though somebody is there"
    CHUNK = ("a pass computes a part of a prompt and yields no token", CHUNKS | DISCARDS)
    LAST_CHUNK = "a pass ends a prompt begun in an earlier one"
    DECODE_AND_PREFILL = "a decode and a prefill share a pass"
    BUDGET_SPENT = "a pass uses its token budget exactly up"
    SEATS_TAKEN = "max_num_seqs requests run"
    THRESHOLD_CUTS = ("the long-prefill threshold cuts a prompt", THRESHOLD)
    THRESHOLD_WAIVED = ("the threshold is waived for a request that is alone", THRESHOLD)
    DRAFTS_UNUSED = ("a pass has no tokens left for some drafts of a request", DRAFTS)
    LOOKAHEAD_BLOCK = ("a block is taken for look-ahead slots alone", LOOKAHEAD)
    RESERVED_AHEAD = ("an admission reserves blocks that its text does not need yet", RESERVED)
    PADDED_FIRST_DECODE = (
        "the first decode of an admission is padded",
        DRAFTS & Needs("padding", lambda c, p: p.pad_first_decode),
    )
    PASSED_OVER = (
        "somebody is admitted from behind a refused one",
        Needs("the head is passed over", lambda c, p: p.head_of_line is HeadOfLine.SKIP),
    )
    WATERMARK_REFUSES = ("only the watermark keeps a request out", WATERMARK)

    # passed over, by reason
    SKIPPED_NO_TOKENS = "passed over: the token budget is used up"
    SKIPPED_MODEL_LENGTH = "passed over: max_model_len leaves nothing to compute"
    SKIPPED_NO_BLOCKS = (
        "passed over: no free blocks, and nobody gives way",
        Needs("no victims", lambda c, p: p.victim is Victim.NONE),
    )
    SKIPPED_NO_ROOM = "passed over: too few free blocks to admit it"
    SKIPPED_NO_SEATS = "passed over: max_num_seqs requests run"
    SKIPPED_PREEMPTION = (
        "passed over: somebody was preempted in this pass",
        PREEMPTING
        & Needs(
            "nobody is admitted after a preemption",
            lambda c, p: p.after_preemption is AfterPreemption.ADMIT_NOBODY,
        ),
    )
    SKIPPED_BATCH = (
        "passed over: a static batch is running",
        Needs("static batching", lambda c, p: p.batching is Batching.STATIC),
    )
    SKIPPED_PREFILL = (
        "passed over: this step is all prefill",
        Needs("prefill first", lambda c, p: p.step_mix is StepMix.PREFILL_FIRST),
    )
    SKIPPED_NO_CHUNKS = (
        "passed over: its prompt may not be cut",
        Needs("no chunked prefill", lambda c, p: not p.chunked_prefill),
    )
    SKIPPED_PADDING = (
        "passed over: its padded first decode exceeds the tokens left",
        DRAFTS & Needs("padding", lambda c, p: p.pad_first_decode),
    )

    # outcomes
    ENDS_BY_STOP = "a request ends by a stop token"
    ENDS_BY_MAX_TOKENS = "a request ends with max_tokens of output"
    ENDS_BY_MODEL_LENGTH = "a request ends at max_model_len"
    END_CUTS_DRAFTS = ("the end of a request cuts accepted drafts off", DRAFTS)
    STOP_CUTS_DRAFTS = ("a stop token cuts accepted drafts off", DRAFTS)
    SEVERAL_END = "several requests end in one step"
    DRAFTS_ALL = ("all drafts of a request are accepted", DRAFTS)
    DRAFTS_SOME = ("some drafts are accepted, some are not", TWO_DRAFTS)
    DRAFTS_NONE = ("all drafts of a request are rejected", DRAFTS)
    BLOCK_BY_DRAFTS = ("accepted drafts complete a block", SHARED & DRAFTS)
    OUTPUT_IGNORED = "the output of a request that has left, or waits again, is ignored"
    OUTPUT_OF_NAMESAKE = "the output of a former owner of a living id is ignored"
    DEFERRED = ("a table is held until the step in flight is done", DEFERS)
    DEFERRED_DONE = ("a table that was held for a step in flight is released", DEFERS)

    # discards
    DISCARDS_ADMISSION = ("a step that admitted somebody is discarded", DISCARDS)
    DISCARDS_PREFILL = ("a further step of a prompt is discarded", DISCARDS)
    DISCARDS_DECODE = ("a decode is discarded", DISCARDS)
    DISCARDS_LEFT = ("a step of a request that has left is discarded", DISCARDS)
    DISCARD_GIVES_BACK = (
        "a discarded step gives blocks back",
        DISCARDS & Needs("paged memory", lambda c, p: p.memory is Memory.PAGED),
    )

    # aborts and resets
    ABORTS_WAITING = "a request that waits is aborted"
    ABORTS_PREEMPTED = "a request that waits with output is aborted"
    ABORTS_PREFILL = "a request is aborted inside its prompt"
    ABORTS_DECODE = "a request is aborted between two decodes"
    ABORTS_IN_FLIGHT = "a request is aborted while its step is in flight"
    ABORTS_TWICE = "a request that was aborted in flight is aborted again"
    ABORTS_NOBODY = "an abort names nobody"
    RESET_DONE = ("a reset forgets cached blocks", SHARED)
    RESET_REFUSED = "a reset is refused because blocks are held"
    RESET_PREEMPTS = ("a reset preempts what runs", RESETS)
    RESET_IN_FLIGHT = ("a reset preempts what is in flight", RESETS)


SKIPPED = {
    Reason.NO_TOKENS: Mark.SKIPPED_NO_TOKENS,
    Reason.MODEL_LENGTH: Mark.SKIPPED_MODEL_LENGTH,
    Reason.NO_BLOCKS: Mark.SKIPPED_NO_BLOCKS,
    Reason.NO_ROOM: Mark.SKIPPED_NO_ROOM,
    Reason.NO_SEATS: Mark.SKIPPED_NO_SEATS,
    Reason.PREEMPTION: Mark.SKIPPED_PREEMPTION,
    Reason.BATCH: Mark.SKIPPED_BATCH,
    Reason.PREFILL: Mark.SKIPPED_PREFILL,
    Reason.NO_CHUNKS: Mark.SKIPPED_NO_CHUNKS,
    Reason.PADDING: Mark.SKIPPED_PADDING,
}


ENDS_SAME_PASS = {
    Reason.NO_SEATS: Mark.SEATS_END_SAME_PASS,
    Reason.NO_TOKENS: Mark.TOKENS_END_SAME_PASS,
}
"""What is counted when somebody gives way, and then ends."""


def possible(config: Config, policy: Policy) -> tuple[Mark, ...]:
    """The marks whose needs these sizes and choices meet."""
    return tuple(mark for mark in Mark if mark.needs.met(config, policy))


def having(found: dict[Mark, bool]) -> Iterator[Mark]:
    return (mark for mark, true in found.items() if true)
