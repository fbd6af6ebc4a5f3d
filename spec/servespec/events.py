"""What a transition says of itself. Events belong to the transition that causes them, in order.

Hits, evictions, latencies and steps are folds over events; the state keeps no history. Grouping
several events into one message is the business of whoever sends them.
"""

from __future__ import annotations

from enum import Enum

from attrs import frozen

from servespec.chain import Chain, Tokens


class Reason(Enum):
    """Why a request was passed over, ended or refused."""

    # passed over in a pass
    NO_TOKENS = "the token budget is used up"
    MODEL_LENGTH = "max_model_len leaves no token to compute"
    NO_BLOCKS = "too few free blocks for its next tokens, and nobody gives way"
    NO_ROOM = "too few free blocks to admit it"
    NO_SEATS = "max_num_seqs requests run"
    PREEMPTION = "somebody was preempted in this pass"
    BATCH = "a static batch is running"
    PREFILL = "this step is all prefill"
    NO_CHUNKS = "its prompt exceeds the tokens left and may not be cut"
    PADDING = "its padded first decode exceeds the tokens left"
    # ended
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    # refused
    IMPOSSIBLE = "it can never fit"
    HELD = "blocks are held"


@frozen
class Submitted:
    id: str


@frozen
class Admitted:
    id: str
    hit_tokens: int
    """Tokens that need no computation."""
    blocks: tuple[int, ...]
    """The hit blocks, then those taken."""


@frozen
class Scheduled:
    id: str
    tokens: int
    drafts: int
    new_blocks: tuple[int, ...]


@frozen
class Skipped:
    id: str
    reason: Reason


@frozen
class Preempted:
    id: str


@frozen
class BlockStored:
    block: int
    key: Chain
    parent: Chain | None


@frozen
class BlockRemoved:
    block: int
    key: Chain


@frozen
class CacheCleared:
    pass


@frozen
class Delivered:
    id: str
    first_position: int
    """Index of the first of `tokens` in the request's output."""
    tokens: Tokens


@frozen
class Finished:
    id: str
    reason: Reason


@frozen
class Refused:
    subject: str
    """The request, or the action, that met a legal no."""
    reason: Reason


PoolEvent = BlockStored | BlockRemoved | CacheCleared
Event = (
    Submitted
    | Admitted
    | Scheduled
    | Skipped
    | Preempted
    | PoolEvent
    | Delivered
    | Finished
    | Refused
)
