"""What is used of vLLM 0.33.0, and the import of it.

Theory of operation. vLLM is large and mostly not there, so it is imported by name, when the first
engine is made, and nothing here or in `adapters` depends on its types. What is used of its objects
is written down below as protocols, under vLLM's own names: that is the whole surface on which this
adapter and vLLM meet, and the first place to look when a new release of vLLM is to be driven.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cache
from importlib import import_module, metadata
from typing import Protocol

from attrs import frozen

from servecheck.engines.protocol import EngineError
from servespec.events import Reason

VERSION = "0.33.0"
"""The vLLM that this adapter is written for, and the only one that it drives."""

QUIET = {"VLLM_NO_USAGE_STATS": "1", "VLLM_PLUGINS": "", "HF_HUB_OFFLINE": "1"}
"""vLLM looks for nothing and tells nobody, unless the environment wants it to."""


# --- the pool ------------------------------------------------------------------------------


class TheirBlock(Protocol):
    block_id: int
    ref_cnt: int


class TheirQueue(Protocol):
    def get_all_free_blocks(self) -> list[TheirBlock]: ...


class TheirIndex(Protocol):
    _cache: Mapping[Hashable, TheirBlock | dict[int, TheirBlock]]
    """By key one block, or several by their number, the oldest first."""


class TheirRequest(Protocol):
    request_id: str
    arrival_time: float
    num_tokens: int
    num_computed_tokens: int
    is_prefill_chunk: bool
    """Its last pass did not reach the end of its text."""
    spec_token_ids: list[int]
    block_hashes: list[bytes]


class TheirPool(Protocol):
    blocks: list[TheirBlock]
    free_block_queue: TheirQueue
    cached_block_hash_to_block: TheirIndex

    def get_cached_block(self, block_hash: bytes, groups: list[int], /) -> list[TheirBlock] | None:
        """The block that answers to a hash, in each group."""
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

    def free_blocks(self, ordered_blocks: list[TheirBlock], /) -> None:
        """The first is to be evicted first."""
        ...

    def reset_prefix_cache(self) -> bool: ...


class TheirManager(Protocol):
    block_pool: TheirPool

    def get_block_ids(self, request_id: str, /) -> tuple[list[int], ...]:
        """The block table of a request, in each group."""
        ...


# --- the scheduler -------------------------------------------------------------------------


class TheirNew(Protocol):
    """An entry of a plan whose request the worker does not have: new, or back again."""

    req_id: str
    block_ids: tuple[list[int], ...]
    """Its whole table, in each group."""
    num_computed_tokens: int


class TheirCached(Protocol):
    """The entries of a plan whose requests the worker has."""

    req_ids: list[str]
    new_block_ids: list[tuple[list[int], ...] | None]
    """What its table grows by, in each group."""
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
    """In serving order."""
    kv_holding_waiting: Iterable[TheirRequest]
    """Those that wait with blocks, served first: nobody, without transfers and streamed prompts."""
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

    def reset_prefix_cache(self, reset_running_requests: bool, /) -> bool: ...


class TheirCacheConfig(Protocol):
    num_gpu_blocks: int


# --- all of it -----------------------------------------------------------------------------


@frozen
class Vllm:
    """What makes these objects, under vLLM's names."""

    BlockPool: Callable[..., TheirPool]
    CacheConfig: Callable[..., TheirCacheConfig]
    DraftTokenIds: Callable[..., object]
    FullAttentionSpec: Callable[..., object]
    KVCacheConfig: Callable[..., object]
    KVCacheGroupSpec: Callable[..., object]
    LoRARequest: Callable[..., object]
    ModelRunnerOutput: Callable[..., object]
    ObservabilityConfig: Callable[..., object]
    ParallelConfig: Callable[..., object]
    Request: Callable[..., TheirRequest]
    SamplingParams: Callable[..., object]
    Scheduler: Callable[..., TheirScheduler]
    SchedulerConfig: Callable[..., object]
    SpeculativeConfig: Callable[..., object]
    get_request_block_hasher: Callable[..., object]
    sha256: object
    float16: object
    aborted: object
    """The status of who was aborted."""
    reasons: Mapping[Hashable, Reason]
    """Why a request ends, by vLLM's finish_reason."""


def missing() -> str | None:
    """Why no engine can be made here; None if one can."""
    try:
        found = metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return f"vLLM {VERSION} is not installed"
    return None if found == VERSION else f"vLLM is {found} here, not {VERSION}"


@cache
def load() -> Vllm:
    """Import vLLM; this takes some seconds.

    Raises:
        EngineError: it is not there, or is another version.
    """
    if (why := missing()) is not None:
        raise EngineError(f"{why}; `make engines` makes an environment that has it")
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    logging.getLogger("vllm").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _imported()


def _imported() -> Vllm:
    config = import_module("vllm.config")
    kv = import_module("vllm.v1.kv_cache_interface")
    kv_utils = import_module("vllm.v1.core.kv_cache_utils")
    outputs = import_module("vllm.v1.outputs")
    request = import_module("vllm.v1.request")
    ended = import_module("vllm.v1.engine").FinishReason
    sha256 = import_module("vllm.utils.hashing").sha256
    kv_utils.init_none_hash(sha256)
    return Vllm(
        BlockPool=import_module("vllm.v1.core.block_pool").BlockPool,
        CacheConfig=config.CacheConfig,
        DraftTokenIds=outputs.DraftTokenIds,
        FullAttentionSpec=kv.FullAttentionSpec,
        KVCacheConfig=kv.KVCacheConfig,
        KVCacheGroupSpec=kv.KVCacheGroupSpec,
        LoRARequest=import_module("vllm.lora.request").LoRARequest,
        ModelRunnerOutput=outputs.ModelRunnerOutput,
        ObservabilityConfig=config.ObservabilityConfig,
        ParallelConfig=config.ParallelConfig,
        Request=request.Request,
        SamplingParams=import_module("vllm.sampling_params").SamplingParams,
        Scheduler=import_module("vllm.v1.core.sched.scheduler").Scheduler,
        SchedulerConfig=config.SchedulerConfig,
        SpeculativeConfig=config.SpeculativeConfig,
        get_request_block_hasher=kv_utils.get_request_block_hasher,
        sha256=sha256,
        float16=import_module("torch").float16,
        aborted=request.RequestStatus.FINISHED_ABORTED,
        reasons={ended.STOP: Reason.STOP, ended.LENGTH: Reason.LENGTH},
    )
