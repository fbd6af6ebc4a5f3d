"""The universes in which properties are asked for inductiveness, by name.

Each is as small as what it shows allows: two requests or slots, so that blocks are shared; two or
three blocks, so that they are used again; blocks of one token, so that each is full, and of two, so
that the last one need not be. All states are enumerated, so a little more is a lot.
"""

from __future__ import annotations

from servecheck.explore.allcaches import AllCaches
from servecheck.explore.allstates import AllStates
from servecheck.explore.axes import AFTER_STEP, kind
from servecheck.explore.cache import texts
from servecheck.explore.serving import Serving
from servespec.cache import CacheMachine
from servespec.config import Config
from servespec.machine import Machine
from servespec.policy import MINIATURE, VLLM_0_33

CACHES = {
    "cache": AllCaches(CacheMachine(3, 2, 2, MINIATURE), texts("00 01 000 0001")),
    "cache-small": AllCaches(CacheMachine(2, 1, 2, MINIATURE), texts("0 00")),
}

FULL = Config(num_blocks=3, block_size=1, max_model_len=3, max_num_batched_tokens=3, max_num_seqs=2)
PARTIAL = Config(
    num_blocks=3, block_size=2, max_model_len=3, max_num_batched_tokens=3, max_num_seqs=2
)
NO_NULL = Config(
    num_blocks=2, block_size=1, max_model_len=3, max_num_batched_tokens=3, max_num_seqs=2
)
ONE_KIND = (kind("0", 2),)

SERVING = {
    "full-blocks": AllStates(Serving(Machine(FULL, AFTER_STEP), ONE_KIND, 2)),
    "partial-blocks": AllStates(Serving(Machine(PARTIAL, AFTER_STEP), ONE_KIND, 2)),
    "at-schedule": AllStates(Serving(Machine(PARTIAL, VLLM_0_33), ONE_KIND, 2)),
    "miniature": AllStates(Serving(Machine(NO_NULL, MINIATURE), ONE_KIND, 2)),
    "two-tokens": AllStates(Serving(Machine(PARTIAL, AFTER_STEP), ONE_KIND, 2, tokens=(0, 1))),
}
