"""The sizes and choices of a recording, as those of a machine."""

from __future__ import annotations

from attrs import evolve

from servecheck.recording import model
from servespec.config import Config
from servespec.policy import VLLM_0_33, Admission, Policy, Sharing, prioritised


def policy_of(config: model.RunConfig) -> Policy:
    """The profile VLLM_0_33 with the recorded switches."""
    policy = evolve(
        VLLM_0_33,
        chunked_prefill=config.enable_chunked_prefill,
        sharing=Sharing.FULL_BLOCKS if config.enable_prefix_caching else Sharing.OFF,
        admission=(Admission.WHOLE_TEXT if config.scheduler_reserve_full_isl else Admission.STEP),
    )
    return prioritised(policy) if config.policy == "priority" else policy


def config_of(config: model.RunConfig) -> Config:
    """The recorded sizes."""
    return Config(
        num_blocks=config.num_gpu_blocks,
        block_size=config.block_size,
        max_model_len=config.max_model_len,
        max_num_batched_tokens=config.budget,
        max_num_seqs=config.max_num_seqs,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        watermark=config.watermark,
        num_speculative_tokens=config.num_speculative_tokens,
        num_lookahead_tokens=config.num_lookahead_tokens,
    )
