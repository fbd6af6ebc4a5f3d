"""vLLM's block pool and its scheduler as engines of the levels L1 and L3.

Theory of operation. vLLM decides on the CPU which requests run and which blocks they get; only the
forward pass needs a GPU and a model. So here vLLM's own objects decide, in this process, and what a
model would have sampled comes from whoever drives the engine:

    submit ──▶ Scheduler.add_request            schedule ──▶ Scheduler.schedule ──▶ SeenPlan
    abort ──▶ Scheduler.finish_requests         complete ──▶ Scheduler.update_from_output
    reset_cache ──▶ Scheduler.reset_prefix_cache             Scheduler.update_draft_token_ids

A plan is read off vLLM's SchedulerOutput alone; block tables are put together from it as a worker
does. State is read off vLLM's requests and its pool. In front of its scheduler vLLM has a process
that takes requests in, and what that does to them is done here: prompts longer than max_model_len
are turned away, and an id is made unique, so that the output of a step in flight never goes to a
namesake of a request that has left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import count
from types import SimpleNamespace

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
from servecheck.engines.vllm.theirs import (
    VERSION,
    TheirBlock,
    TheirPlan,
    TheirPool,
    TheirRequest,
    TheirScheduler,
    Vllm,
    load,
)
from servespec.actions import Output, Submit
from servespec.chain import Namespace, Tokens
from servespec.config import Config
from servespec.policy import VLLM_0_33, Admission, Order, Policy, Sharing, prioritised
from servespec.pool import Blocks

GROUP = 0
"""Of the layers that share a block table. There is one; models of mixed attention have more."""


# --- what vLLM cannot be -------------------------------------------------------------------

POOL_AXES = ("sharing", "lookup", "null_block", "free_walk", "unhashed")
"""The choices that a pool makes. At L1 all others are the specification's, and free."""

SWITCHES: dict[str, tuple[object, ...]] = {
    "sharing": (Sharing.FULL_BLOCKS, Sharing.OFF),
    "admission": (Admission.WHOLE_TEXT, Admission.STEP),
    "chunked_prefill": (True, False),
}
"""The axes on which vLLM has a switch: enable_prefix_caching, scheduler_reserve_full_isl,
enable_chunked_prefill. There is one more, the scheduling policy, which sets order and victim."""


def require_pool(policy: Policy) -> None:
    """Refuse choices that vLLM's pool does not make.

    Raises:
        Unsupported: naming the axis.
    """
    _require(policy, VLLM_0_33, POOL_AXES)


def require_loop(config: Config, policy: Policy) -> None:
    """Refuse sizes and choices that vLLM's scheduler cannot have.

    Raises:
        Unsupported: naming the axis or the size.
    """
    base = prioritised(VLLM_0_33) if policy.order is Order.PRIORITY else VLLM_0_33
    _require(policy, base, [axis.name for axis in fields(Policy)])
    threshold, longest = config.long_prefill_token_threshold, config.max_model_len
    if threshold > longest:
        raise Unsupported(
            f"long_prefill_token_threshold: vLLM takes none above max_model_len, {longest}, "
            f"and this is {threshold}"
        )


def _require(policy: Policy, base: Policy, axes: Iterable[str]) -> None:
    for axis in axes:
        mine, theirs = getattr(policy, axis), SWITCHES.get(axis, (getattr(base, axis),))
        if mine not in theirs:
            only = " or ".join(map(_told, theirs))
            along = f" with order {base.order.value}" if axis == "victim" else ""
            raise Unsupported(f"{axis}: vLLM has {only}{along}, and this is {_told(mine)}")


def _told(choice: object) -> str:
    return str(getattr(choice, "value", choice))


# --- requests ------------------------------------------------------------------------------


@define
class Requests:
    """Makes vLLM's requests, whose block hashes are vLLM's own; none where sharing is off."""

    vllm: Vllm
    hasher: object
    adapters: dict[str, object] = field(factory=dict)

    @staticmethod
    def of(vllm: Vllm, config: Config, policy: Policy) -> Requests:
        if policy.sharing is Sharing.OFF:
            return Requests(vllm, None)
        return Requests(vllm, vllm.get_request_block_hasher(config.block_size, vllm.sha256))

    def make(self, request: Submit, request_id: str = "", arrival: float = 0) -> TheirRequest:
        sampling = self.vllm.SamplingParams(
            max_tokens=request.max_tokens, stop_token_ids=list(request.stop), ignore_eos=True
        )
        return self.vllm.Request(
            request_id,
            list(request.prompt),
            sampling,
            None,
            arrival_time=arrival,
            priority=request.priority,
            cache_salt=request.namespace.salt,
            lora_request=self.adapter(request.namespace.adapter),
            block_hasher=self.hasher,
        )

    def adapter(self, name: str | None) -> object:
        """vLLM hashes an adapter's name and path; its number is for the worker."""
        if name is not None and name not in self.adapters:
            self.adapters[name] = self.vllm.LoRARequest(name, len(self.adapters) + 1, name)
        return None if name is None else self.adapters[name]


# --- L1 ------------------------------------------------------------------------------------


def see(pool: TheirPool) -> SeenPool:
    """All that vLLM's pool holds."""
    index = (
        Copies(key, tuple(found) if isinstance(found, dict) else (found.block_id,))
        for key, found in pool.cached_block_hash_to_block._cache.items()
    )
    free = _numbers(pool.free_block_queue.get_all_free_blocks())
    return SeenPool(free, tuple(block.ref_cnt for block in pool.blocks), tuple(index))


def _numbers(blocks: Iterable[TheirBlock]) -> Blocks:
    return tuple(block.block_id for block in blocks)


class VllmPool:
    """L1: vLLM's `BlockPool`, and the hashes of its requests.

    Raises:
        Unsupported: vLLM's pool does not choose as this policy does.
        EngineError: vLLM is not there, or is another version.
    """

    capabilities = Capabilities("vLLM", VERSION, Level.POOL)

    def __init__(self, config: Config, policy: Policy) -> None:
        require_pool(policy)
        vllm = load()
        self.size = config.block_size
        self.requests = Requests.of(vllm, config, policy)
        self.pool = vllm.BlockPool(
            config.num_blocks, policy.sharing is Sharing.FULL_BLOCKS, self.size
        )

    def match(self, namespace: Namespace, text: Tokens, limit: int) -> Blocks:
        hits: Blocks = ()
        for block_hash in self._hashed(namespace, text).block_hashes[:limit]:
            found = self.pool.get_cached_block(block_hash, [GROUP])
            if found is None:
                break
            hits += _numbers(found)
        return hits

    def acquire(self, hits: Blocks) -> None:
        self.pool.touch(self._blocks(hits))

    def extend(self, count: int) -> Blocks:
        return _numbers(self.pool.get_new_blocks(count))

    def publish(
        self, table: Blocks, namespace: Namespace, text: Tokens, start: int, stop: int
    ) -> None:
        request, blocks = self._hashed(namespace, text), self._blocks(table)
        self.pool.cache_full_blocks(request, blocks, start, stop, self.size, GROUP)

    def release(self, table: Blocks) -> None:
        """vLLM's pool is given a table in order of eviction, the last block first."""
        self.pool.free_blocks(self._blocks(table[::-1]))

    def clear(self) -> bool:
        return self.pool.reset_prefix_cache()

    def see_pool(self) -> SeenPool:
        return see(self.pool)

    def _hashed(self, namespace: Namespace, text: Tokens) -> TheirRequest:
        return self.requests.make(Submit("", text, 1, namespace))

    def _blocks(self, numbers: Blocks) -> list[TheirBlock]:
        return [self.pool.blocks[number] for number in numbers]


# --- L3 ------------------------------------------------------------------------------------


@frozen
class InFlight:
    """A plan of vLLM's, and for whom it reaches the end of the text, in order of scheduling."""

    plan: TheirPlan
    yields: dict[str, bool]


class VllmLoop:
    """L3: vLLM's `Scheduler` and all that it holds, without asynchronous scheduling.

    What it has planned must run, so it cannot discard. Adapters keep caches apart; how many may be
    loaded at once is not limited. Drafts are those of an n-gram drafter, which needs no slots;
    num_lookahead_tokens are set by hand, as a drafter with a KV cache of its own would.

    Raises:
        Unsupported: vLLM cannot have these sizes or choices.
        EngineError: vLLM is not there, or is another version.
    """

    capabilities = Capabilities("vLLM", VERSION, Level.STATE, frozenset({Verb.DISCARD}))

    def __init__(self, config: Config, policy: Policy) -> None:
        require_loop(config, policy)
        self.vllm, self.config = load(), config
        self.requests = Requests.of(self.vllm, config, policy)
        self.scheduler = scheduler(self.vllm, config, policy)
        self.in_flight: deque[InFlight] = deque()
        self._preempted: list[str] = []
        """Since the last plan, in order."""
        self._tables: dict[str, Blocks] = {}
        """Of each request, as a worker has them."""
        self._ours: dict[str, str] = {}
        """What we call a request, by what vLLM calls it."""
        self._theirs: dict[str, str] = {}
        self._clock = count()
        self._tap_preemptions()

    def _tap_preemptions(self) -> None:
        """A plan tells who was preempted as a set; this keeps the order."""
        preempt = self.scheduler._preempt_request

        def noted(request: TheirRequest, timestamp: float, drop_stale_output: bool = False) -> None:
            self._preempted.append(request.request_id)
            preempt(request, timestamp, drop_stale_output=drop_stale_output)

        self.scheduler._preempt_request = noted

    def submit(self, request: Submit) -> bool:
        """The unique ids sort as those that they are made of: vLLM settles by them who comes first
        of those that arrived together. vLLM's own front end turns away a prompt of max_model_len
        as well, which its scheduler would take; the specification is of the scheduler."""
        if len(request.prompt) > self.config.max_model_len:
            return False
        now = next(self._clock)
        live = [other.arrival_time for other in self.scheduler.requests.values()]
        arrival = max(live) if request.with_last and live else now
        unique = f"{request.id}\0{now}"
        self._ours[unique], self._theirs[request.id] = request.id, unique
        self.scheduler.add_request(self.requests.make(request, unique, arrival))
        return True

    def schedule(self) -> SeenPlan:
        before = len(self._preempted)
        plan = self.scheduler.schedule()
        requests = self.scheduler.requests
        self.in_flight.append(
            InFlight(plan, {i: not requests[i].is_prefill_chunk for i in plan.num_scheduled_tokens})
        )
        if set(self._preempted) != plan.preempted_req_ids:
            raise EngineError(
                f"vLLM preempted {self._preempted}, and tells {plan.preempted_req_ids}"
            )
        preempted = tuple(self._ours[i] for i in self._preempted[before:])
        self._preempted.clear()
        starts = self._worker_gets(plan)
        drafts = plan.scheduled_spec_decode_tokens
        entries = (
            SeenEntry(self._ours[i], starts[i], tokens, tuple(drafts.get(i, ())), self._tables[i])
            for i, tokens in plan.num_scheduled_tokens.items()
        )
        return SeenPlan(tuple(entries), preempted)

    def _worker_gets(self, plan: TheirPlan) -> dict[str, int]:
        """Bring the tables up to date by the plan. Answers how much of each request is computed."""
        computed: dict[str, int] = {}
        for new in plan.scheduled_new_reqs:
            self._tables[new.req_id] = tuple(new.block_ids[GROUP])
            computed[new.req_id] = new.num_computed_tokens
        cached = plan.scheduled_cached_reqs
        computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for i, more in zip(cached.req_ids, cached.new_block_ids, strict=True):
            self._tables[i] += () if more is None else tuple(more[GROUP])
        return computed

    def complete(self, outputs: Sequence[Output]) -> SeenOutcome:
        """First what was sampled, then the drafts, as in vLLM's own loop. A model knows of nobody
        that has left: it samples for all, and vLLM has to ignore it."""
        step, brought = self.in_flight.popleft(), {output.id: output for output in outputs}
        ids = list(step.yields)
        mine = [
            brought.get(self._ours[i], Output("", (0,) if yields else ()))
            for i, yields in step.yields.items()
        ]
        sampled = self.vllm.ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={i: at for at, i in enumerate(ids)},
            sampled_token_ids=[list(output.tokens) for output in mine],
        )
        told = self.scheduler.update_from_output(step.plan, sampled)
        if self.config.num_speculative_tokens:
            drafts = [list(output.drafts) for output in mine]
            self.scheduler.update_draft_token_ids(self.vllm.DraftTokenIds(ids, drafts))
        ends = (end for client in told.values() for end in client.outputs)
        finished = (
            (self._ours[end.request_id], self.vllm.reasons.get(end.finish_reason))
            for end in ends
            if end.finish_reason is not None
        )
        return SeenOutcome(tuple(finished))

    def discard(self) -> None:
        raise EngineError("vLLM cannot discard what it has planned")

    def abort(self, request_id: str) -> bool:
        known = self._theirs.get(request_id, request_id)
        return bool(self.scheduler.finish_requests(known, self.vllm.aborted))

    def reset_cache(self, preempt_running: bool) -> bool:
        return self.scheduler.reset_prefix_cache(preempt_running)

    def see_state(self) -> SeenState:
        s = self.scheduler
        return SeenState(
            see(s.kv_cache_manager.block_pool),
            tuple(self._seen(r) for r in s.running),
            tuple(self._seen(r) for r in (*s.kv_holding_waiting, *s.waiting)),
        )

    def _seen(self, request: TheirRequest) -> SeenRequest:
        table = self.scheduler.kv_cache_manager.get_block_ids(request.request_id)[GROUP]
        return SeenRequest(
            self._ours[request.request_id],
            request.num_computed_tokens,
            request.num_tokens,
            tuple(table),
            tuple(request.spec_token_ids),
        )


# --- vLLM's configuration ------------------------------------------------------------------

MODEL: dict[str, object] = {
    "is_diffusion": False,
    "is_encoder_decoder": False,
    "return_sampling_mask": False,
    "runner_type": "generate",
    "supports_multimodal_inputs": False,
    "uses_mrope": False,
}
"""A model that reads and writes text."""

PLAIN: dict[str, object] = {
    "aux_output_config": SimpleNamespace(enabled=False),
    "ec_manager_config": SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
    "ec_transfer_config": None,
    "is_mm_encoder_only": False,
    "kv_events_config": None,
    "kv_transfer_config": None,
    "lora_config": None,
    "max_concurrent_batches": 1,
    "num_hash_lookahead_tokens": 0,
    "num_prefill_lookahead_tokens": 0,
    "use_v2_model_runner": True,
}
"""One worker, one step in flight, nothing transferred."""


def scheduler(vllm: Vllm, config: Config, policy: Policy) -> TheirScheduler:
    """vLLM's scheduler of these sizes and choices.

    Cache, scheduler, parallelism and drafts have vLLM's own configurations. The whole that holds
    these, and the model's, are stand-ins with what a scheduler reads of them.
    """
    size = config.block_size
    cache = vllm.CacheConfig(
        block_size=size, enable_prefix_caching=policy.sharing is Sharing.FULL_BLOCKS
    )
    cache.num_gpu_blocks = config.num_blocks
    batch, parallel = _batch(config, policy), vllm.ParallelConfig()
    whole = SimpleNamespace(
        **PLAIN,
        cache_config=cache,
        max_in_flight_tokens=batch,
        model_config=SimpleNamespace(**MODEL, max_model_len=config.max_model_len),
        num_lookahead_tokens=config.num_lookahead_tokens,
        num_speculative_tokens=config.num_speculative_tokens,
        observability_config=vllm.ObservabilityConfig(),
        parallel_config=parallel,
        scheduler_config=vllm.SchedulerConfig(
            async_scheduling=False,
            enable_chunked_prefill=policy.chunked_prefill,
            is_encoder_decoder=False,
            long_prefill_token_threshold=config.long_prefill_token_threshold,
            max_model_len=config.max_model_len,
            max_num_batched_tokens=batch,
            max_num_scheduled_tokens=config.max_num_batched_tokens,
            max_num_seqs=config.max_num_seqs,
            policy=policy.order.value,
            scheduler_reserve_full_isl=policy.admission is Admission.WHOLE_TEXT,
            watermark=config.watermark,
        ),
        speculative_config=_drafter(vllm, config, parallel),
    )
    spec = vllm.FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=vllm.float16)
    return vllm.Scheduler(
        block_size=size,
        hash_block_size=size,
        kv_cache_config=vllm.KVCacheConfig(
            num_blocks=config.num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[vllm.KVCacheGroupSpec(["layer"], spec)],
        ),
        structured_output_manager=SimpleNamespace(
            accept_tokens=lambda request, tokens: True,
            validate_tokens=lambda request, tokens: tokens,
        ),
        vllm_config=whole,
    )


def _batch(config: Config, policy: Policy) -> int:
    """vLLM demands of a batch that it holds a token of each request, and a whole prompt if prompts
    may not be cut. What it schedules may be less, and is set besides."""
    whole = 0 if policy.chunked_prefill else config.max_model_len
    return max(config.max_num_batched_tokens, config.max_num_seqs, whole)


def _drafter(vllm: Vllm, config: Config, parallel: object) -> object:
    if config.num_speculative_tokens == 0:
        return None
    return vllm.SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=config.num_speculative_tokens,
        prompt_lookup_max=2,
        prompt_lookup_min=1,
        target_parallel_config=parallel,
    )
