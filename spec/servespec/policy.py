"""Policy: the choices that serving engines make differently, one axis each.

A value of an axis exists only where a real engine, a recording or a theorem distinguishes it.
Below the axes stand the choice functions, one small function per question that the machine
asks; nothing else in the machine looks at an axis. They take plain sequences and numbers, so an
engine can ask the same questions of its own structures. At the end: the profiles, as data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Protocol, get_type_hints

from attrs import evolve, frozen

from servespec.errors import ConfigError
from servespec.rules import rule


class Batching(Enum):
    CONTINUOUS = "continuous"
    STATIC = "static"  # a batch is filled only when nothing runs


class Memory(Enum):
    PAGED = "paged"
    RESERVED = "reserved"  # max_model_len slots at admission


class Sharing(Enum):
    OFF = "off"
    FULL_BLOCKS = "full_blocks"


class Publish(Enum):
    AT_SCHEDULE = "at_schedule"  # with the allocation, before anything is computed
    AFTER_STEP = "after_step"


class Lookup(Enum):
    OLDEST = "oldest"  # of several copies of a key
    NEWEST = "newest"


class FreeWalk(Enum):
    TAIL_FIRST = "tail_first"
    HEAD_FIRST = "head_first"


class Unhashed(Enum):
    TO_HEAD = "to_head"  # freed blocks without a key are used first
    IN_PLACE = "in_place"  # like any other


class HitCap(Enum):
    LAST_TOKEN = "last_token"  # n - 1 tokens, whole blocks
    NONE = "none"  # every full block is shared, the last token recomputed in place


class Admission(Enum):
    STEP = "step"  # the tokens of the first step fit
    WHOLE_TEXT = "whole_text"  # prompt, and output of a request that comes back, fit
    WHOLE_REQUEST = "whole_request"  # all output to come fits too, that of others included


class Impossible(Enum):
    REFUSE = "refuse"  # a request that can never fit is turned away
    QUEUE = "queue"  # … waits for ever


class Order(Enum):
    FCFS = "fcfs"
    PRIORITY = "priority"  # (priority, arrival, id), smallest first


class HeadOfLine(Enum):
    STOP = "stop"  # a refused head ends admissions
    SKIP = "skip"  # the next one is tried


class Readmission(Enum):
    HEAD = "head"  # a preempted request goes before those that wait (FCFS)
    TAIL = "tail"


class StepMix(Enum):
    RUNNING_FIRST = "running_first"
    PREFILL_FIRST = "prefill_first"  # a step that admits does nothing else


class AfterPreemption(Enum):
    ADMIT_NOBODY = "admit_nobody"
    GO_ON = "go_on"


class RunningCap(Enum):
    BELOW_MODEL_LENGTH = "below_model_length"  # computed stays under max_model_len
    NONE = "none"


class Victim(Enum):
    LAST_ADMITTED = "last_admitted"
    WORST_PRIORITY = "worst_priority"
    NONE = "none"  # who finds no room waits in its place


class Release(Enum):
    AT_ONCE = "at_once"
    DEFERRED = "deferred"  # blocks that a step in flight writes stay held until it is done


class Reset(Enum):
    REFUSE_WHILE_HELD = "refuse_while_held"
    PREEMPT_FIRST = "preempt_first"  # if asked to


class Phase(Enum):
    """A part of a scheduling pass."""

    RUNNING = "running"
    ADMISSION = "admission"


@frozen
class Policy:
    """One value on every axis."""

    batching: Batching
    memory: Memory
    sharing: Sharing
    publish: Publish
    lookup: Lookup
    null_block: bool
    free_walk: FreeWalk
    unhashed: Unhashed
    hit_cap: HitCap
    admission: Admission
    impossible: Impossible
    order: Order
    head_of_line: HeadOfLine
    readmission: Readmission
    step_mix: StepMix
    after_preemption: AfterPreemption
    chunked_prefill: bool
    running_cap: RunningCap
    victim: Victim
    pad_first_decode: bool
    release: Release
    reset: Reset

    def __attrs_post_init__(self) -> None:
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kind):
                allowed = [True, False] if kind is bool else [v.name for v in kind]
                raise ConfigError(name, f"{value!r} is no {kind.__name__}", f"choose of {allowed}")

    @property
    def first_block(self) -> int:
        """Lowest block that is handed out (rule 1)."""
        return 1 if self.null_block else 0

    @property
    def publishes_unwritten(self) -> bool:
        """Blocks can be found before their content exists; then every plan must be run."""
        return shares(self) and self.publish is Publish.AT_SCHEDULE


_KINDS: dict[str, type[bool] | type[Enum]] = get_type_hints(Policy)
"""The axes, and what their values are."""


class Queued(Protocol):
    """What a choice among requests looks at."""

    @property
    def id(self) -> str: ...
    @property
    def priority(self) -> int: ...
    @property
    def arrival(self) -> int: ...


# --- the pool's choices --------------------------------------------------------------------


def shares(policy: Policy) -> bool:
    """Full blocks have keys, and can be found."""
    return policy.sharing is Sharing.FULL_BLOCKS


def copy_found(policy: Policy, copies: Sequence[int]) -> int:
    """Rule 11: of several blocks with one key, listed oldest first, the one that answers."""
    return copies[0 if policy.lookup is Lookup.OLDEST else -1]


def hit_limit(policy: Policy, length: int, block_size: int) -> int:
    """Rule 11: most blocks that a text of `length` tokens may share."""
    return (length - 1 if policy.hit_cap is HitCap.LAST_TOKEN else length) // block_size


def release_walk(policy: Policy, table: Sequence[int]) -> Sequence[int]:
    """Rule 8: the order in which the blocks of a table are let go."""
    return table[::-1] if policy.free_walk is FreeWalk.TAIL_FIRST else table


def goes_to_head(policy: Policy, hashed: bool) -> bool:
    """Rule 8: a freed block is put before the whole free queue, instead of behind it."""
    return not hashed and policy.unhashed is Unhashed.TO_HEAD


def published_at(policy: Policy, moment: Publish) -> bool:
    """Rules 10, 35: blocks are published at this moment. After a step always: what accepted
    drafts completed can be published no earlier."""
    return moment is Publish.AFTER_STEP or policy.publish is moment


# --- the scheduler's choices ---------------------------------------------------------------


def phases(policy: Policy) -> tuple[Phase, ...]:
    """The parts of a pass, in order (rules 15, 24)."""
    first = Phase.RUNNING if policy.step_mix is StepMix.RUNNING_FIRST else Phase.ADMISSION
    last = Phase.ADMISSION if policy.step_mix is StepMix.RUNNING_FIRST else Phase.RUNNING
    return first, last


@rule("A", engine="nano-vllm Scheduler.schedule")
def shut_out_by_prefill(policy: Policy, admitted: bool) -> bool:
    """Prefill first: a step in which somebody was admitted does nothing else, so its running
    requests wait."""
    return policy.step_mix is StepMix.PREFILL_FIRST and admitted


@rule("B", engine="the article's simulate(); any batch server")
def shut_by_batch(policy: Policy, running_at_start: int) -> bool:
    """Static batching: nobody is admitted to a pass that began with something running."""
    return policy.batching is Batching.STATIC and running_at_start > 0


def shut_by_preemption(policy: Policy, preempted: int) -> bool:
    """Rule 23: nobody is admitted to a pass in which somebody was preempted."""
    return policy.after_preemption is AfterPreemption.ADMIT_NOBODY and preempted > 0


def passes_over(policy: Policy) -> bool:
    """Rule 26: when the head of the waiting queue is refused, the next one is tried."""
    return policy.head_of_line is HeadOfLine.SKIP


def slots_looked_at(policy: Policy, text: int, whole: int) -> int:
    """Rule 12: token slots that an admission must find room for, though it takes only those of its
    first step: none more, those of the text as it stands, or all that the request can use."""
    looked_at = {Admission.STEP: 0, Admission.WHOLE_TEXT: text, Admission.WHOLE_REQUEST: whole}
    return looked_at[policy.admission]


@rule("P", engine="mini-sglang, admission")
def promised(policy: Policy, still_to_take: Iterable[int]) -> int:
    """A policy that admits for all output to come counts the blocks that each running request may
    still take as spent: then nobody ever lacks a block, and nobody is preempted."""
    return sum(still_to_take) if policy.admission is Admission.WHOLE_REQUEST else 0


@rule("M", engine="the article's reservation; static caches")
def slots_at_admission(policy: Policy, slots: int, max_model_len: int) -> int:
    """Reserved memory: an admission takes max_model_len slots at once, and nothing later."""
    return max_model_len if policy.memory is Memory.RESERVED else slots


def returned_blocks(policy: Policy, taken: int) -> int:
    """Of the blocks taken for a step that is discarded, those that go back; a reservation stays."""
    return 0 if policy.memory is Memory.RESERVED else taken


def defers_release(policy: Policy) -> bool:
    """Blocks that a step in flight writes to stay held until it is done."""
    return policy.release is Release.DEFERRED


def preempts_for_reset(policy: Policy, asked: bool) -> bool:
    """Rule 9: a reset first sends back what runs, if it is asked to and the engine can."""
    return asked and policy.reset is Reset.PREEMPT_FIRST


def refuses_impossible(policy: Policy) -> bool:
    """A request that can never fit is turned away."""
    return policy.impossible is Impossible.REFUSE


def running_cap(policy: Policy, max_model_len: int) -> int:
    """Rule 16: most tokens that a running request may have computed."""
    return max_model_len - (1 if policy.running_cap is RunningCap.BELOW_MODEL_LENGTH else 0)


@rule("19", "20", engine="Scheduler.schedule, the running loop")
def victim(policy: Policy, running: Sequence[Queued]) -> int | None:
    """Who gives way when a running request finds no room: FCFS the last of the running list,
    possibly the request itself, and so none that this pass has scheduled; by priority the largest
    (priority, arrival), among equals the first in the list, scheduled in this pass or not. The
    id plays no part."""
    if policy.victim is Victim.NONE:
        return None
    if policy.victim is Victim.LAST_ADMITTED:
        return len(running) - 1
    return max(range(len(running)), key=lambda i: (running[i].priority, running[i].arrival, -i))


@rule("3", engine="RequestQueue: FCFSRequestQueue, PriorityRequestQueue")
def place_in_waiting(
    policy: Policy, waiting: Sequence[Queued], request: Queued, preempted: bool
) -> int:
    """Waiting is first come, first served, and a preempted request goes to the head; or it is
    ordered by (priority, arrival, id), and a preempted request goes back by the same key."""
    if policy.order is Order.PRIORITY:
        mine = (request.priority, request.arrival, request.id)
        return sum((w.priority, w.arrival, w.id) < mine for w in waiting)
    return 0 if preempted and policy.readmission is Readmission.HEAD else len(waiting)


# --- profiles ------------------------------------------------------------------------------

VLLM_0_33 = Policy(
    batching=Batching.CONTINUOUS,
    memory=Memory.PAGED,
    sharing=Sharing.FULL_BLOCKS,
    publish=Publish.AT_SCHEDULE,
    lookup=Lookup.OLDEST,
    null_block=True,
    free_walk=FreeWalk.TAIL_FIRST,
    unhashed=Unhashed.TO_HEAD,
    hit_cap=HitCap.LAST_TOKEN,
    admission=Admission.WHOLE_TEXT,
    impossible=Impossible.QUEUE,
    order=Order.FCFS,
    head_of_line=HeadOfLine.STOP,
    readmission=Readmission.HEAD,
    step_mix=StepMix.RUNNING_FIRST,
    after_preemption=AfterPreemption.ADMIT_NOBODY,
    chunked_prefill=True,
    running_cap=RunningCap.BELOW_MODEL_LENGTH,
    victim=Victim.LAST_ADMITTED,
    pad_first_decode=True,
    release=Release.AT_ONCE,
    reset=Reset.PREEMPT_FIRST,
)
"""vLLM 0.33.0 as recorded. Its `--scheduling-policy priority` is `prioritised(VLLM_0_33)`,
which is named VLLM_0_33_PRIORITY."""

MINIATURE = evolve(
    VLLM_0_33,
    null_block=False,
    unhashed=Unhashed.IN_PLACE,
    hit_cap=HitCap.NONE,
    impossible=Impossible.REFUSE,
    chunked_prefill=False,
    running_cap=RunningCap.NONE,
)
"""The serving loop in miniature of the article, continuous batching over a paged cache."""

STATIC = evolve(MINIATURE, batching=Batching.STATIC, publish=Publish.AFTER_STEP)
"""The miniature with static batching."""

RESERVED = evolve(MINIATURE, memory=Memory.RESERVED, publish=Publish.AFTER_STEP)
"""The miniature with max_model_len slots reserved at admission."""

PROFILES = {
    "VLLM_0_33": VLLM_0_33,
    "MINIATURE": MINIATURE,
    "STATIC": STATIC,
    "RESERVED": RESERVED,
}


def prioritised(policy: Policy) -> Policy:
    """The same policy, serving by priority, and choosing its victims by it."""
    return evolve(policy, order=Order.PRIORITY, victim=Victim.WORST_PRIORITY)


NAMED = {**PROFILES, "VLLM_0_33_PRIORITY": prioritised(VLLM_0_33)}
"""Every policy that has a name, by it: what is typed, printed and recorded. The profiles, and
vLLM's by priority."""


def name_of(policy: Policy) -> str | None:
    """The name of a policy, if it has one."""
    return next((name for name, named in NAMED.items() if named == policy), None)
