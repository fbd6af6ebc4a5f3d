"""Memory: bytes of weights and of KV cache, and how many blocks and sequences fit beside them.

Theory of operation. A `Deployment` is a model on a device, or on tp equal ones, with a format for
its weights and one for its cache. All figures are for *one rank*; with tp = 1 that is the whole.
A token leaves a row of keys and a row of values in each layer (MLA: a latent and a rotary key). In
layers with a sliding window the cache of a sequence stops growing at the window.

What fits is an upper bound: activations, CUDA graphs, workspaces of the framework, the driver and
fragmentation come out of the same memory. Who knows what they take, states it as `overhead`; who
does not can ask what overhead an observed number of blocks tells of (`overhead_behind`).
"""

from __future__ import annotations

from fractions import Fraction
from math import floor

from attrs import field, frozen

from servespec.config import blocks_for
from servespec.errors import ConfigError
from servespec.theory.devices import Device
from servespec.theory.dtypes import DTYPES, Dtype
from servespec.theory.shapes import Model, whole


@frozen
class Deployment:
    """A model on tp devices.

    Raises:
        ConfigError: the model cannot be split so, or its rows do not fill the blocks of the cache's
            format.
    """

    model: Model
    device: Device
    weights: Dtype = field(default=DTYPES["bf16"])
    cache: Dtype = field(default=DTYPES["bf16"])
    tp: int = 1

    def __attrs_post_init__(self) -> None:
        self.model.parameters(self.tp)
        row_bytes(self)


def row_bytes(d: Deployment) -> Fraction:
    """Bytes that one token leaves in one layer."""
    return Fraction(sum(d.cache.row(n, "KV cache") for n in d.model.attention.cached(d.tp)))


def weight_bytes(d: Deployment) -> Fraction:
    """Bytes of the weights of a rank, all in one format. (Files that keep norms or embeddings in a
    wider one are larger.)"""
    return d.model.parameters(d.tp) * d.weights.bytes


def kv_bytes_per_token(d: Deployment) -> Fraction:
    """Bytes that one more token takes, as long as no window is full: L × what a layer keeps."""
    return d.model.layers * row_bytes(d)


def kv_bytes(d: Deployment, context: int) -> Fraction:
    """Bytes of the cache of a sequence of so many tokens, those behind its windows dropped.

    Raises:
        ConfigError: the text is longer than the model's context.
    """
    m = d.model
    fits_model(m, "context", context)
    kept = context if m.window is None else min(context, m.window)
    return row_bytes(d) * ((m.layers - m.windowed_layers) * context + m.windowed_layers * kept)


def fits_model(model: Model, name: str, tokens: int) -> None:
    """A text has at least one token, and at most as many as the model was made for.

    Raises:
        ConfigError: naming it.
    """
    whole(tokens, name)
    if tokens > model.context:
        problem = f"{tokens} tokens are beyond the {model.context} of {model.name}"
        raise ConfigError(name, problem, f"give at most {model.context}, or choose another model")


def cache_memory(
    d: Deployment, utilisation: Fraction = Fraction(1), overhead: Fraction | int = 0
) -> Fraction:
    """Bytes left for the cache of a rank: the part of the memory that may be used, less weights and
    stated overheads. Below 0: the weights do not fit.

    Raises:
        ConfigError: a part outside 0 … 1, or an overhead below 0.
    """
    if not 0 < utilisation <= 1:
        problem = f"{float(utilisation)} lies outside 0 < utilisation ≤ 1"
        raise ConfigError("utilisation", problem, "set another part of the memory")
    if overhead < 0:
        raise ConfigError("overhead", f"{float(overhead):,.0f} bytes is below 0", "set another")
    return utilisation * d.device.memory - weight_bytes(d) - overhead


def blocks_that_fit(
    d: Deployment,
    block_size: int = 16,
    utilisation: Fraction = Fraction(1),
    overhead: Fraction | int = 0,
) -> int:
    """Blocks of so many token slots that fit, the null block included; an upper bound."""
    whole(block_size, "block_size")
    left = cache_memory(d, utilisation, overhead)
    return max(floor(left / (block_size * kv_bytes_per_token(d))), 0)


def sequences_that_fit(
    d: Deployment,
    context: int,
    block_size: int | None = None,
    utilisation: Fraction = Fraction(1),
    overhead: Fraction | int = 0,
) -> int:
    """Sequences of this length whose caches fit at once, sharing nothing; an upper bound. With a
    block size, whole blocks: the tail of the last one is lost, and so is the null block; windows
    then free nothing."""
    one = kv_bytes(d, context)
    if block_size is None:
        return max(floor(cache_memory(d, utilisation, overhead) / one), 0)
    usable = blocks_that_fit(d, block_size, utilisation, overhead) - 1
    return max(usable // blocks_for(context, block_size), 0)


def overhead_behind(
    d: Deployment, blocks: int, block_size: int = 16, utilisation: Fraction = Fraction(1)
) -> tuple[Fraction, Fraction]:
    """The overheads, more than the first and at most the second, with which exactly so many blocks
    fit; what an engine that reports its blocks must have kept for other things."""
    left, block = cache_memory(d, utilisation), block_size * kv_bytes_per_token(d)
    return left - (blocks + 1) * block, left - blocks * block
