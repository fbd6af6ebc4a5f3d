"""vLLM 0.33.0 itself, alive: its `BlockPool` (L1), and its `Scheduler` with all that it holds (L3).

Theory of operation. vLLM decides on the CPU which requests run and which blocks they get; only the
forward pass needs a GPU and a model. So here vLLM's own objects decide, in this process, and the
tokens that a model would have sampled come from whoever drives the engine:

    submit ──▶ Scheduler.add_request            schedule ──▶ Scheduler.schedule ──▶ SeenPlan
    abort ──▶ Scheduler.finish_requests         complete ──▶ Scheduler.update_from_output
    reset_cache ──▶ Scheduler.reset_prefix_cache             Scheduler.update_draft_token_ids

Plans are read off vLLM's `SchedulerOutput` alone: block tables are put together as a worker does.
State is read off its request objects and its pool. Around the scheduler vLLM has a front end, and
what that does to a request is done here: it turns away prompts longer than max_model_len, and makes
an id unique, so that nobody is taken for an aborted namesake whose step is in flight.

Nothing of vLLM is imported before an engine is made. What is used of its objects is written down
as protocols. `python -m servecheck.engines.vllm` walks at random, vLLM beside the specification.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module, metadata
from itertools import count
from types import SimpleNamespace
from typing import Protocol

from attrs import define, field, fields, frozen

from servecheck.engines.protocol import (
    Capabilities,
    Copies,
    EngineError,
    Level,
    SeenEntry,
    SeenOutcome,
    SeenPlan,
    SeenPool,
    SeenRequest,
    SeenState,
    Unsupported,
    Verb,
)
from servecheck.fuzz.walk import Walk
from servecheck.lockstep.follow import EngineFollower
from servecheck.marks import marks_of
from servespec.actions import Action, Output, Submit
from servespec.chain import Namespace, Tokens
from servespec.config import Config
from servespec.events import Reason
from servespec.policy import VLLM_0_33, Admission, Order, Policy, Sharing, prioritised
from servespec.pool import Blocks
from servespec.properties import step_of

VERSION = "0.33.0"
"""The vLLM that this adapter is written for, and the only one that it drives."""

GROUP = 0
"""The one group of layers that share block tables; vLLM has more for models of mixed attention."""


# --- what vLLM cannot be -------------------------------------------------------------------

POOL_AXES = ("sharing", "lookup", "null_block", "free_walk", "unhashed")
"""The choices of a policy that a pool makes; at L1 all others are the specification's."""

CHOICES: dict[str, tuple[object, ...]] = {
    "sharing": tuple(Sharing),
    "admission": (Admission.WHOLE_TEXT, Admission.STEP),
    "chunked_prefill": (True, False),
}
"""The axes on which vLLM has switches: enable_prefix_caching, scheduler_reserve_full_isl and
enable_chunked_prefill. `order` and `victim` go together: scheduling_policy."""


def require_pool(policy: Policy) -> None:
    """Refuse choices that vLLM's pool does not make.

    Raises:
        Unsupported: naming the axis.
    """
    _require(policy, VLLM_0_33, POOL_AXES)


def require_loop(config: Config, policy: Policy) -> None:
    """Refuse sizes and choices that vLLM's scheduler does not have.

    Raises:
        Unsupported: naming the size or the axis.
    """
    base = prioritised(VLLM_0_33) if policy.order is Order.PRIORITY else VLLM_0_33
    _require(policy, base, [axis.name for axis in fields(Policy)])
    if config.long_prefill_token_threshold > config.max_model_len:
        raise Unsupported(
            f"long_prefill_token_threshold: vLLM refuses {config.long_prefill_token_threshold}, "
            f"which is more than max_model_len, {config.max_model_len}"
        )


def _require(policy: Policy, base: Policy, axes: Iterable[str]) -> None:
    for axis in axes:
        mine, theirs = getattr(policy, axis), CHOICES.get(axis, (getattr(base, axis),))
        if mine not in theirs:
            only = " or ".join(map(_value, theirs))
            with_order = f" while order is {base.order.value}" if axis == "victim" else ""
            raise Unsupported(f"{axis}: vLLM has only {only}{with_order}, not {_value(mine)}")


def _value(choice: object) -> str:
    return str(getattr(choice, "value", choice))


# --- what is used of vLLM ------------------------------------------------------------------


class TheirBlock(Protocol):
    block_id: int
    ref_cnt: int


class TheirQueue(Protocol):
    def get_all_free_blocks(self) -> list[TheirBlock]: ...


class TheirIndex(Protocol):
    _cache: Mapping[Hashable, TheirBlock | dict[int, TheirBlock]]


class TheirRequest(Protocol):
    request_id: str
    arrival_time: float
    num_tokens: int
    num_computed_tokens: int
    spec_token_ids: list[int]
    block_hashes: list[bytes]


class TheirPool(Protocol):
    blocks: list[TheirBlock]
    free_block_queue: TheirQueue
    cached_block_hash_to_block: TheirIndex

    def get_cached_block(self, block_hash: bytes, groups: list[int], /) -> list[TheirBlock] | None:
        """The oldest copy of a key, one of each group."""
        ...

    def touch(self, blocks: list[TheirBlock], /) -> None: ...

    def get_new_blocks(self, count: int, /) -> list[TheirBlock]: ...

    def cache_full_blocks(
        self,
        request: TheirRequest,
        blocks: list[TheirBlock],
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        kv_cache_group_id: int,
    ) -> None: ...

    def free_blocks(self, blocks: list[TheirBlock], /) -> None: ...

    def reset_prefix_cache(self) -> bool: ...


class TheirManager(Protocol):
    block_pool: TheirPool

    def get_block_ids(self, request_id: str, /) -> tuple[list[int], ...]:
        """The block table of a request, in each group."""
        ...


class TheirNew(Protocol):
    """An entry of a plan whose request the worker does not have: new, or back again."""

    req_id: str
    block_ids: tuple[list[int], ...]
    """Its whole table."""
    num_computed_tokens: int


class TheirCached(Protocol):
    """The entries of a plan whose requests the worker has."""

    req_ids: list[str]
    new_block_ids: list[tuple[list[int], ...] | None]
    """What its table grows by."""
    num_computed_tokens: list[int]


class TheirPlan(Protocol):
    """vLLM's SchedulerOutput."""

    scheduled_new_reqs: list[TheirNew]
    scheduled_cached_reqs: TheirCached
    num_scheduled_tokens: dict[str, int]
    """In order of scheduling."""
    scheduled_spec_decode_tokens: dict[str, list[int]]
    preempted_req_ids: set[str]
    """In the pass, and by resets since the last one."""


class TheirEnd(Protocol):
    """vLLM's EngineCoreOutput."""

    request_id: str
    finish_reason: Hashable | None


class TheirOutputs(Protocol):
    outputs: list[TheirEnd]


class TheirScheduler(Protocol):
    requests: dict[str, TheirRequest]
    running: list[TheirRequest]
    waiting: Iterable[TheirRequest]
    kv_holding_waiting: Iterable[TheirRequest]
    """Those that wait with blocks, served first: nobody does, without streams and transfers."""
    kv_cache_manager: TheirManager
    _preempt_request: Callable[..., None]

    def add_request(self, request: TheirRequest, /) -> None: ...

    def schedule(self) -> TheirPlan: ...

    def update_from_output(self, plan: TheirPlan, sampled: object, /) -> dict[int, TheirOutputs]:
        """What is told to each client."""
        ...

    def update_draft_token_ids(self, drafts: object, /) -> None: ...

    def finish_requests(self, request_id: str, status: object, /) -> list[TheirRequest]:
        """Those that were alive."""
        ...

    def reset_prefix_cache(self, *, reset_running_requests: bool) -> bool: ...


class TheirCacheConfig(Protocol):
    num_gpu_blocks: int


@frozen
class Vllm:
    """vLLM's makers, under their own names."""

    BlockPool: Callable[..., TheirPool]
    Scheduler: Callable[..., TheirScheduler]
    Request: Callable[..., TheirRequest]
    SamplingParams: Callable[..., object]
    LoRARequest: Callable[..., object]
    ModelRunnerOutput: Callable[..., object]
    DraftTokenIds: Callable[..., object]
    CacheConfig: Callable[..., TheirCacheConfig]
    SchedulerConfig: Callable[..., object]
    ParallelConfig: Callable[..., object]
    ObservabilityConfig: Callable[..., object]
    SpeculativeConfig: Callable[..., object]
    KVCacheConfig: Callable[..., object]
    KVCacheGroupSpec: Callable[..., object]
    FullAttentionSpec: Callable[..., object]
    get_request_block_hasher: Callable[..., object]
    sha256: object
    float16: object
    aborted: object
    reasons: Mapping[Hashable, Reason]


def missing() -> str | None:
    """Why no engine can be made here; None: one can."""
    try:
        found = metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return f"vLLM {VERSION} is not installed"
    return None if found == VERSION else f"vLLM is {found} here, and not {VERSION}"


@cache
def load() -> Vllm:
    """Import vLLM; this takes some seconds.

    Raises:
        EngineError: it is not there, or is another version.
    """
    if (why := missing()) is not None:
        raise EngineError(f"{why}; make it with: make engines")
    for name, value in SILENT.items():
        os.environ.setdefault(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config, v1, core = import_module("vllm.config"), "vllm.v1", "vllm.v1.core"
        kv, utils = (
            import_module(f"{v1}.kv_cache_interface"),
            import_module(f"{core}.kv_cache_utils"),
        )
        requests, outputs = import_module(f"{v1}.request"), import_module(f"{v1}.outputs")
        ended = import_module(f"{v1}.engine").FinishReason
        sha256 = import_module("vllm.utils.hashing").sha256
        made = Vllm(
            import_module(f"{core}.block_pool").BlockPool,
            import_module(f"{core}.sched.scheduler").Scheduler,
            requests.Request,
            import_module("vllm.sampling_params").SamplingParams,
            import_module("vllm.lora.request").LoRARequest,
            outputs.ModelRunnerOutput,
            outputs.DraftTokenIds,
            config.CacheConfig,
            config.SchedulerConfig,
            config.ParallelConfig,
            config.ObservabilityConfig,
            config.SpeculativeConfig,
            kv.KVCacheConfig,
            kv.KVCacheGroupSpec,
            kv.FullAttentionSpec,
            utils.get_request_block_hasher,
            sha256,
            import_module("torch").float16,
            requests.RequestStatus.FINISHED_ABORTED,
            {ended.STOP: Reason.STOP, ended.LENGTH: Reason.LENGTH},
        )
        utils.init_none_hash(sha256)
    return made


SILENT = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "",
    "HF_HUB_OFFLINE": "1",
}
"""vLLM asks no network and tells no news, unless the environment wants it to."""


# --- the pool, L1 --------------------------------------------------------------------------


@define
class Requests:
    """Makes vLLM's requests, whose block hashes are vLLM's own."""

    vllm: Vllm
    size: int
    hasher: object = None
    adapters: dict[str, object] = field(factory=dict)

    @staticmethod
    def of(vllm: Vllm, config: Config, policy: Policy) -> Requests:
        """Where nothing is shared there are no hashes."""
        size = config.block_size
        if policy.sharing is Sharing.OFF:
            return Requests(vllm, size)
        return Requests(vllm, size, vllm.get_request_block_hasher(size, vllm.sha256))

    def make(
        self,
        request_id: str,
        text: Tokens,
        namespace: Namespace,
        arrival: float = 0.0,
        priority: int = 0,
        max_tokens: int = 1,
        stop: Tokens = (),
    ) -> TheirRequest:
        sampling = self.vllm.SamplingParams(
            max_tokens=max_tokens, stop_token_ids=list(stop), ignore_eos=True
        )
        return self.vllm.Request(
            request_id,
            list(text),
            sampling,
            None,
            arrival_time=arrival,
            priority=priority,
            cache_salt=namespace.salt,
            lora_request=None if namespace.adapter is None else self.adapter(namespace.adapter),
            block_hasher=self.hasher,
        )

    def adapter(self, name: str) -> object:
        """vLLM tells adapters apart by name and path; the number is for its worker."""
        if name not in self.adapters:
            self.adapters[name] = self.vllm.LoRARequest(name, len(self.adapters) + 1, name)
        return self.adapters[name]


def see(pool: TheirPool) -> SeenPool:
    """All that vLLM's pool holds."""
    index = (
        Copies(key, tuple(found) if isinstance(found, dict) else (found.block_id,))
        for key, found in pool.cached_block_hash_to_block._cache.items()
    )
    return SeenPool(
        _numbers(pool.free_block_queue.get_all_free_blocks()),
        tuple(block.ref_cnt for block in pool.blocks),
        tuple(index),
    )


def _numbers(blocks: Iterable[TheirBlock]) -> Blocks:
    return tuple(block.block_id for block in blocks)


class VllmPool:
    """L1: vLLM's `BlockPool`, and the hashes of its requests.

    Raises:
        Unsupported: its pool does not choose as this policy does.
        EngineError: vLLM is not there, or is another version.
    """

    capabilities = Capabilities("vLLM", VERSION, Level.POOL)

    def __init__(self, config: Config, policy: Policy) -> None:
        require_pool(policy)
        vllm = load()
        self.size = config.block_size
        self.shares = policy.sharing is Sharing.FULL_BLOCKS
        self.requests = Requests.of(vllm, config, policy)
        self.pool = vllm.BlockPool(config.num_blocks, self.shares, self.size)

    def match(self, namespace: Namespace, text: Tokens, limit: int) -> Blocks:
        if not self.shares:
            return ()
        hits: list[int] = []
        for name in self.requests.make("", text, namespace).block_hashes[:limit]:
            found = self.pool.get_cached_block(name, [GROUP])
            if found is None:
                break
            hits += _numbers(found)
        return tuple(hits)

    def acquire(self, hits: Blocks) -> None:
        self.pool.touch(self._blocks(hits))

    def extend(self, count: int) -> Blocks:
        return _numbers(self.pool.get_new_blocks(count))

    def publish(
        self, table: Blocks, namespace: Namespace, text: Tokens, start: int, stop: int
    ) -> None:
        request = self.requests.make("", text, namespace)
        self.pool.cache_full_blocks(request, self._blocks(table), start, stop, self.size, GROUP)

    def release(self, table: Blocks) -> None:
        """vLLM's pool is given a table in the order of eviction."""
        self.pool.free_blocks(self._blocks(table[::-1]))

    def clear(self) -> bool:
        return self.pool.reset_prefix_cache()

    def see_pool(self) -> SeenPool:
        return see(self.pool)

    def _blocks(self, numbers: Blocks) -> list[TheirBlock]:
        return [self.pool.blocks[b] for b in numbers]


# --- the loop, L3 --------------------------------------------------------------------------


class VllmLoop:
    """L3: vLLM's `Scheduler`, without asynchronous scheduling.

    Its tokens come from outside, so it cannot discard a step that it has planned; with prefix
    caching the specification cannot either. Adapters are told apart by what is cached, with no
    limit on how many are loaded at once. Drafts are those of an n-gram drafter, which needs no
    slots; num_lookahead_tokens are set as a drafter with a cache of its own would.

    Raises:
        Unsupported: it cannot have these sizes or choices.
        EngineError: vLLM is not there, or is another version.
    """

    capabilities = Capabilities("vLLM", VERSION, Level.STATE, frozenset({Verb.DISCARD}))

    def __init__(self, config: Config, policy: Policy) -> None:
        require_loop(config, policy)
        self.vllm, self.config = load(), config
        self.requests = Requests.of(self.vllm, config, policy)
        self.scheduler = _scheduler(self.vllm, config, policy)
        self.plans: deque[TheirPlan] = deque()
        """In flight, the oldest first."""
        self._preempted: list[str] = []
        """Since the last plan, in order."""
        self._tables: dict[str, Blocks] = {}
        """As a worker knows them."""
        self._theirs: dict[str, str] = {}
        """The id that vLLM knows a request by, as long as it may be alive."""
        self._mine: dict[str, str] = {}
        self._clock = count()
        self._tap_preemptions()

    def _tap_preemptions(self) -> None:
        """vLLM reports who was preempted as a set; what is wanted here is the order."""
        preempt = self.scheduler._preempt_request

        def noted(request: TheirRequest, timestamp: float, drop_stale_output: bool = False) -> None:
            self._preempted.append(request.request_id)
            preempt(request, timestamp, drop_stale_output=drop_stale_output)

        self.scheduler._preempt_request = noted

    def submit(self, request: Submit) -> bool:
        """vLLM's front end refuses a prompt that is too long, and makes ids unique. Here they keep
        their order, by which vLLM tells apart who is equal otherwise."""
        if len(request.prompt) > self.config.max_model_len:
            return False
        tick = next(self._clock)
        live = [r.arrival_time for r in self.scheduler.requests.values()]
        arrival = max(live) if request.with_last and live else float(tick)
        unique = f"{request.id}\0{tick}"
        self._mine[unique], self._theirs[request.id] = request.id, unique
        self.scheduler.add_request(
            self.requests.make(
                unique,
                request.prompt,
                request.namespace,
                arrival,
                request.priority,
                request.max_tokens,
                request.stop,
            )
        )
        return True

    def schedule(self) -> SeenPlan:
        earlier = len(self._preempted)
        plan = self.scheduler.schedule()
        self.plans.append(plan)
        if set(self._preempted) != plan.preempted_req_ids:
            raise EngineError(f"vLLM tells of {plan.preempted_req_ids}, not of {self._preempted}")
        preempted = tuple(self._mine[i] for i in self._preempted[earlier:])
        self._preempted.clear()
        starts = self._worker_gets(plan)
        entries = (
            SeenEntry(
                self._mine[i],
                starts[i],
                tokens,
                tuple(plan.scheduled_spec_decode_tokens.get(i, ())),
                self._tables[i],
            )
            for i, tokens in plan.num_scheduled_tokens.items()
        )
        return SeenPlan(tuple(entries), preempted)

    def _worker_gets(self, plan: TheirPlan) -> dict[str, int]:
        """Bring the tables up to date by what the plan says; where each request begins."""
        starts: dict[str, int] = {}
        for new in plan.scheduled_new_reqs:
            self._tables[new.req_id] = tuple(new.block_ids[GROUP])
            starts[new.req_id] = new.num_computed_tokens
        cached = plan.scheduled_cached_reqs
        for i, more, computed in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            self._tables[i] += () if more is None else tuple(more[GROUP])
            starts[i] = computed
        return starts

    def complete(self, outputs: Sequence[Output]) -> SeenOutcome:
        """Sampled tokens first, then the drafts, as vLLM's own loop does it."""
        plan, said = self.plans.popleft(), {o.id: o for o in outputs}
        ids = list(plan.num_scheduled_tokens)
        brought = [said.get(self._mine[i], Output("")) for i in ids]
        sampled = self.vllm.ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={i: index for index, i in enumerate(ids)},
            sampled_token_ids=[list(o.tokens) for o in brought],
        )
        told = self.scheduler.update_from_output(plan, sampled)
        if self.config.num_speculative_tokens:
            drafts = [list(o.drafts) for o in brought]
            self.scheduler.update_draft_token_ids(self.vllm.DraftTokenIds(ids, drafts))
        ends = (end for client in told.values() for end in client.outputs)
        return SeenOutcome(
            tuple(
                (self._mine[end.request_id], self.vllm.reasons.get(end.finish_reason))
                for end in ends
                if end.finish_reason is not None
            )
        )

    def discard(self) -> None:
        raise EngineError("vLLM cannot discard a step that it has planned")

    def abort(self, request_id: str) -> bool:
        known = self._theirs.get(request_id, request_id)
        return bool(self.scheduler.finish_requests(known, self.vllm.aborted))

    def reset_cache(self, preempt_running: bool) -> bool:
        return self.scheduler.reset_prefix_cache(reset_running_requests=preempt_running)

    def see_state(self) -> SeenState:
        theirs = self.scheduler
        return SeenState(
            see(theirs.kv_cache_manager.block_pool),
            tuple(self._seen(r) for r in theirs.running),
            tuple(self._seen(r) for r in (*theirs.kv_holding_waiting, *theirs.waiting)),
        )

    def _seen(self, r: TheirRequest) -> SeenRequest:
        table = self.scheduler.kv_cache_manager.get_block_ids(r.request_id)[GROUP]
        return SeenRequest(
            self._mine[r.request_id],
            r.num_computed_tokens,
            r.num_tokens,
            tuple(table),
            tuple(r.spec_token_ids),
        )


def _scheduler(vllm: Vllm, config: Config, policy: Policy) -> TheirScheduler:
    """vLLM's scheduler, from its own configurations of cache, scheduler, parallelism and drafts;
    the whole that holds them, and the model's, are stand-ins with what a scheduler reads of them.

    vLLM demands a batch that holds a token of each request, and any prompt that may not be cut;
    what it may schedule can be less.
    """
    size, budget, gamma = (
        config.block_size,
        config.max_num_batched_tokens,
        config.num_speculative_tokens,
    )
    batch = max(budget, config.max_num_seqs)
    if not policy.chunked_prefill:
        batch = max(batch, config.max_model_len)
    cache_config = vllm.CacheConfig(
        block_size=size, enable_prefix_caching=policy.sharing is Sharing.FULL_BLOCKS
    )
    cache_config.num_gpu_blocks = config.num_blocks
    spec = vllm.FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=vllm.float16)
    parallel = vllm.ParallelConfig()
    whole = SimpleNamespace(
        scheduler_config=vllm.SchedulerConfig(
            max_model_len=config.max_model_len,
            is_encoder_decoder=False,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=batch,
            max_num_scheduled_tokens=budget,
            enable_chunked_prefill=policy.chunked_prefill,
            long_prefill_token_threshold=config.long_prefill_token_threshold,
            scheduler_reserve_full_isl=policy.admission is Admission.WHOLE_TEXT,
            watermark=config.watermark,
            policy=policy.order.value,
            async_scheduling=False,
        ),
        cache_config=cache_config,
        parallel_config=parallel,
        observability_config=vllm.ObservabilityConfig(),
        speculative_config=None
        if not gamma
        else vllm.SpeculativeConfig(
            method="ngram",
            num_speculative_tokens=gamma,
            prompt_lookup_min=1,
            prompt_lookup_max=2,
            target_parallel_config=parallel,
        ),
        num_speculative_tokens=gamma,
        num_lookahead_tokens=config.num_lookahead_tokens,
        model_config=SimpleNamespace(max_model_len=config.max_model_len, **PLAIN_MODEL),
        max_in_flight_tokens=batch,
        **PLAIN,
    )
    return vllm.Scheduler(
        vllm_config=whole,
        kv_cache_config=vllm.KVCacheConfig(
            num_blocks=config.num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[vllm.KVCacheGroupSpec(["layer"], spec)],
        ),
        structured_output_manager=SimpleNamespace(
            accept_tokens=lambda request, tokens: True,
            validate_tokens=lambda request, tokens: tokens,
        ),
        block_size=size,
        hash_block_size=size,
    )


PLAIN_MODEL: dict[str, object] = {
    "uses_mrope": False,
    "is_encoder_decoder": False,
    "is_diffusion": False,
    "runner_type": "generate",
    "supports_multimodal_inputs": False,
    "return_sampling_mask": False,
}
"""A model that reads and writes text."""

PLAIN: dict[str, object] = {
    "lora_config": None,
    "kv_events_config": None,
    "kv_transfer_config": None,
    "ec_transfer_config": None,
    "ec_manager_config": SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
    "aux_output_config": SimpleNamespace(enabled=False),
    "is_mm_encoder_only": False,
    "max_concurrent_batches": 1,
    "num_prefill_lookahead_tokens": 0,
    "num_hash_lookahead_tokens": 0,
    "use_v2_model_runner": True,
}
"""One worker, one step in flight, nothing transferred."""


# --- walks at random -----------------------------------------------------------------------

WALK = 200
"""Moves of a walk; then sizes and choices are drawn anew."""
MOST_BLOCKS = 12


@define
class Together(Walk):
    """A walk that vLLM goes along with; what vLLM cannot do is left out."""

    beside: EngineFollower = field(kw_only=True)
    events: Counter[str] = field(init=False, factory=Counter)

    def do(self, action: Action) -> None:
        if not self.beside.allows(self.machine, self.state, action):
            return
        before = self.state
        self.actions.append(action)
        moved = self.machine.apply(before, action)
        step = step_of(self.machine, before, action, moved)
        self.beside.follow(step)
        self.state = moved.state
        self.marks.update(marks_of(step))
        self.events.update(type(event).__name__ for event in moved.events)
        self._remember(before, moved.events)
