"""What a recording of a real scheduler says, line by line, as values.

A recording is five texts about one run: the *workload* (what was asked for, and when), the
*steps* (what each turn of the engine loop decided), the *events* (what the engine told the
outside about its cache), optionally the *states* (everything the scheduler held, twice a step),
and the *configuration*. The classes here mirror the lines and keep the wire's field names, so
that a reader can hold them beside the file. Three things are put in order on the way in:

* a JSON object whose keys are request ids becomes `ById`, a tuple of (id, value) pairs in file
  order: the order of `scheduled` is the order of scheduling, and a tuple cannot be edited;
* a step line is two things, a *pass* (deciding) and an *outcome* (the result of a pass taken in).
  Either may be absent: a line without a pass has `pass_` None, which is not an empty pass;
* a sampled token is always a tuple, also where a run without drafts writes one bare number.

`None` means "this run does not record it"; an empty tuple or 0 means "recorded: nothing", or that
the format leaves the field out when it is empty. These annotations are also the reader's table:
`Count` and `Name` say more than `int` and `str`, and a field with a default may be left out.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from attrs import frozen

T = TypeVar("T")

Count = Annotated[int, "0 or more"]
"""A number of something, a position, a token, a block number: never negative, so that a block
number of -1 cannot quietly index the last block. Drafts are plain `int`: -1 stands for padding."""

Name = Annotated[str, "not empty"]
"""A request id or a salt. The engine takes an empty salt for none, so none is written null."""

BlockHash = Annotated[int | str, "64 bits, or 64 hex digits"]
"""How an event names a block: the low 64 bits of its hash, or the whole hash in hex digits."""

Ids = tuple[Name, ...]
Blocks = tuple[Count, ...]
Tokens = tuple[Count, ...]
Drafts = tuple[int, ...]
Sampled = Annotated[Tokens, "a bare token or a list"]
ById = tuple[tuple[Name, T], ...]

When = Literal["before", "during"]
"""Before the pass of a step, or between the pass and the next outcome."""

ResetKind = Literal["idle", "running"]
"""A reset of the prefix cache alone, or one that first preempts all that runs."""


# --- Workload -------------------------------------------------------------------------------------


@frozen
class Arrival:
    """A request, which arrives before the pass of step `arrival_step`. Lengths are in tokens."""

    id: Name
    arrival_step: Count
    prompt: Tokens
    max_tokens: Count
    priority: int = 0
    cache_salt: Name | None = None
    stop_token_ids: Tokens = ()


@frozen
class AbortLine:
    """Aborts, one call per id in this order; ids may repeat, be unknown or have finished."""

    ids: Ids
    when: When
    step: Count


@frozen
class ResetLine:
    """A call to reset the prefix cache before the pass of `step`."""

    kind: ResetKind
    step: Count


WorkloadLine = Arrival | AbortLine | ResetLine


# --- Steps ----------------------------------------------------------------------------------------


@frozen
class NewEntry:
    """A request that enters (or comes back): its hits in tokens and its complete table."""

    id: Name
    num_computed: Count
    block_ids: Blocks


@frozen
class CachedEntry:
    """A request that goes on: computed tokens before this pass, and the blocks added in it."""

    id: Name
    num_computed: Count
    new_block_ids: Blocks | None
    resumed: bool


@frozen
class AbortDone:
    """One abort call, what stage it found, and the ids it ended (none if there was no such)."""

    id: Name
    when: When
    was: Literal["waiting", "prefill", "decode", "preempted"] | None
    done: Ids


@frozen
class ResetDone:
    """One reset call, whether it was granted, and whom it preempted, in order."""

    kind: ResetKind
    ok: bool
    preempted: Ids


@frozen
class PassLine:
    """One scheduling pass. Amounts of work are in tokens, `free_blocks` is the count after it."""

    scheduled: ById[Count]
    total: Count
    new: tuple[NewEntry, ...]
    cached: tuple[CachedEntry, ...]
    preempted: Ids
    """Sorted, not in order; also holds those whom a reset preempted since the last pass."""
    finished_before: Ids
    running: Ids
    waiting: Ids
    free_blocks: Count
    scheduled_spec: ById[Drafts] = ()
    preempt_order: Ids | None = None
    """Those whom this pass preempted, in order; toy runs only."""


@frozen
class OutcomeLine:
    """The result of a pass taken in: of this line's pass, or of that of step `update_of`."""

    sampled: ById[Sampled]
    """Accepted drafts and one token, before any cut at a stop."""
    finished: Ids
    free_blocks_after: Count
    appended: ById[Tokens] | None = None
    """What was kept of `sampled`; None where every sampled token is kept."""
    drafts: ById[Drafts] = ()
    finish_reason: ById[Literal["length", "stop"]] = ()
    """Empty in the runs that do not record reasons, whatever `finished` says."""
    computed_after: ById[Count] | None = None
    tables: ById[Blocks] | None = None
    update_of: Count | None = None


@frozen
class StepLine:
    """One turn of the engine loop. Idle turns are left out, so `step` may jump."""

    step: Count
    arrived: Ids
    pass_: PassLine | None = None
    outcome: OutcomeLine | None = None
    aborts: tuple[AbortDone, ...] = ()
    resets: tuple[ResetDone, ...] = ()
    reset: bool = False
    """The prefix cache was reset in an idle moment after this step (runs without `resets`)."""


# --- Events ---------------------------------------------------------------------------------------


@frozen
class BlockStored:
    """Blocks that became findable: `block_size` tokens for each hash, in chain order."""

    block_hashes: tuple[BlockHash, ...]
    parent_block_hash: BlockHash | None
    token_ids: Tokens
    block_size: Count
    extra_keys: tuple[tuple[str, ...] | None, ...]
    """One entry for each hash: None, or what the hash covers beside tokens (here: the salt)."""
    lora_id: Count | None = None
    lora_name: str | None = None
    medium: str | None = None
    group_idx: Count | None = None
    kv_cache_spec_kind: str | None = None


@frozen
class BlockRemoved:
    """One copy of each hash is gone; others may stay."""

    block_hashes: tuple[BlockHash, ...]
    medium: str | None = None
    group_idx: Count | None = None


@frozen
class AllBlocksCleared:
    """Every hash is forgotten."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


@frozen
class Message:
    """The events of one processed step. `ts` is in seconds from the first message (toy: steps)."""

    seq: Count
    ts: float
    events: tuple[Event, ...]
    topic: str
    dp_rank: Count


# --- States ---------------------------------------------------------------------------------------


@frozen
class CachedHash:
    """A hash that is findable, with the blocks that hold it, oldest first."""

    hash: Name
    """The low 32 bits, 8 hex digits: `digest.short_hash`."""
    blocks: Blocks


@frozen
class RequestState:
    """What the scheduler holds of one living request; counts are in tokens unless said."""

    status: Literal["WAITING", "RUNNING", "PREEMPTED"]
    computed: Count
    tokens: Count
    hashes: Count
    """Full blocks whose hash is known."""
    table: Blocks
    published: Count = 0
    """Blocks of the table that were given their hash."""
    preemptions: Count = 0
    """How often it was preempted."""
    spec: Drafts = ()
    placeholders: int = 0
    in_flight: int = 0
    stale: int = 0


@frozen
class StateLine:
    """The whole state after a pass or after an outcome."""

    step: Count
    at: Literal["scheduled", "updated"]
    ref: tuple[Count, ...]
    """Count of holders for each block, index = block number; block 0 is the null block."""
    free: Blocks
    cached: tuple[CachedHash, ...]
    reqs: ById[RequestState]
    running: Ids
    waiting: Ids
    update_of: Count | None = None


# --- Configuration and the whole ------------------------------------------------------------------


@frozen
class RunConfig:
    """The engine settings of a run. Block and sequence lengths are in tokens."""

    num_gpu_blocks: Count
    """The null block included: one more than can be used."""
    block_size: Count
    max_num_batched_tokens: Count
    max_num_seqs: Count
    policy: Literal["fcfs", "priority"]
    max_model_len: Count
    enable_chunked_prefill: bool
    enable_prefix_caching: bool = True
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    """A share of `num_gpu_blocks`, 0 to 1."""
    long_prefill_token_threshold: Count = 0
    max_num_scheduled_tokens: Count | None = None
    num_speculative_tokens: Count = 0
    num_lookahead_tokens: Count = 0
    async_scheduling: bool = False
    vocab: Count | None = None
    seed: str | None = None
    draft_right: float | None = None
    """`vocab`, `seed` and `draft_right` belong to the stand-in for the model and its drafter."""

    @property
    def budget(self) -> int:
        """Tokens that one pass may schedule."""
        limit = self.max_num_scheduled_tokens
        return self.max_num_batched_tokens if limit is None else limit


@frozen
class Recording:
    """One run, whole. Every tuple is in file order."""

    name: str
    release: str
    """Of the engine, as its configuration names it."""
    config: RunConfig
    workload: tuple[WorkloadLine, ...]
    steps: tuple[StepLine, ...]
    messages: tuple[Message, ...]
    states: tuple[StateLine, ...] | None
    """None: this run has no state file."""
