"""Shapes of models: how many parameters, how much cache and arithmetic a token costs.

Theory of operation. A model is L equal layers of width d between two embeddings; a layer is
attention and a feed-forward network. Everything is counted from the shape, exactly. Attention
comes in two kinds. *Grouped*: each of `kv_heads` heads keeps a key and a value of every token,
and `heads` / `kv_heads` query heads share it (as many: MHA; one: MQA; between: GQA). *Latent*
(MLA): all heads share one compressed vector a token and layer, so what is cached does not depend on
the number of heads. In layers with a sliding window a token attends to the last `window` positions,
its own included, and no more need be kept.

Tensor parallelism. A rank holds 1/tp of the heads, of the feed-forward network and of the
vocabulary. Key-value heads are split as far as they go: with more ranks than heads, each rank
holds a copy of one. Norms, biases of outputs, routers and everything about a latent that is not a
matter of heads are on every rank. What does not divide is an error; the vocabulary is padded.
"""

from __future__ import annotations

from typing import Protocol

from attrs import frozen

from servespec.errors import ConfigError


def _part(whole: int, tp: int, what: str) -> int:
    """What a rank holds of something that must divide."""
    if whole % tp:
        remedy = f"choose a divisor of {whole}"
        raise ConfigError("tp", f"{tp} ranks cannot share {whole} {what}", remedy)
    return whole // tp


class Attention(Protocol):
    def parameters(self, width: int, tp: int) -> int:
        """Of one layer, on one rank, norms and biases included."""

    def cached(self, tp: int) -> tuple[int, ...]:
        """Lengths of the rows that a token leaves in the cache of one layer, on one rank."""

    def pair_flops(self, tp: int) -> int:
        """FLOPs of one query position that attends to one position: score and value, all heads
        of a rank, one layer."""


@frozen
class Grouped:
    """MHA, GQA and MQA."""

    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    qk_norm: bool = False

    def _heads(self, tp: int) -> tuple[int, int]:
        """Query heads and key-value heads of a rank."""
        mine = _part(self.heads, tp, "query heads")
        if tp <= self.kv_heads:
            return mine, _part(self.kv_heads, tp, "key-value heads")
        if tp % self.kv_heads:
            problem = f"{tp} ranks cannot hold equally many copies of {self.kv_heads} heads"
            raise ConfigError("tp", problem, f"choose a multiple of {self.kv_heads}")
        return mine, 1

    def parameters(self, width: int, tp: int) -> int:
        heads, kv_heads = self._heads(tp)
        rows = (heads + 2 * kv_heads) * self.head_dim
        bias = rows if self.qkv_bias else 0
        norm = 2 * self.head_dim if self.qk_norm else 0
        return width * rows + bias + norm + heads * self.head_dim * width

    def cached(self, tp: int) -> tuple[int, ...]:
        row = self._heads(tp)[1] * self.head_dim
        return row, row

    def pair_flops(self, tp: int) -> int:
        return 4 * self._heads(tp)[0] * self.head_dim


@frozen
class Latent:
    """MLA (DeepSeek-V2, arXiv 2405.04434, section 2.1): queries and, jointly, keys and values are
    compressed; a rotary key is kept beside them. Decoding multiplies with the cached latent itself
    ("absorbed"), and so are all FLOPs counted here."""

    heads: int
    query_rank: int
    latent: int
    rotary: int
    head_dim: int
    """Of the part of a key without rotary embedding."""
    value_dim: int

    def parameters(self, width: int, tp: int) -> int:
        heads = _part(self.heads, tp, "query heads")
        compress = width * (self.query_rank + self.latent + self.rotary)
        norms = self.query_rank + self.latent
        queries = self.query_rank * heads * (self.head_dim + self.rotary)
        expand = self.latent * heads * (self.head_dim + self.value_dim)
        return compress + norms + queries + expand + heads * self.value_dim * width

    def cached(self, tp: int) -> tuple[int, ...]:
        return self.latent, self.rotary

    def pair_flops(self, tp: int) -> int:
        return 2 * _part(self.heads, tp, "query heads") * (2 * self.latent + self.rotary)


@frozen
class Experts:
    """A mixture in place of the dense feed-forward network, in all but the first layers."""

    count: int
    chosen: int
    """For each token, besides those shared by all."""
    shared: int
    width: int
    dense_layers: int


@frozen
class Model:
    name: str
    layers: int
    width: int
    attention: Attention
    feed_forward: int
    vocabulary: int
    context: int
    """Longest text, in tokens."""
    source: str
    tied: bool = False
    """The output head is the input embedding."""
    gated: bool = True
    """Three matrices in the feed-forward network instead of two."""
    feed_forward_bias: bool = False
    head_bias: bool = False
    norm_vectors: int = 2
    """Vectors of width d that the norms of a layer have."""
    last_norm_vectors: int = 1
    experts: Experts | None = None
    window: int | None = None
    windowed_layers: int = 0

    def parameters(self, tp: int = 1) -> int:
        """Parameters, exactly; on one of tp ranks.

        Raises:
            ConfigError: the shape cannot be split so.
        """
        return self._parameters(tp, chosen=False)

    def active(self, tp: int = 1) -> int:
        """Parameters that one token meets: all of them, but for experts not chosen. The input
        embedding counts, as in the usual 2N, though it is only looked up."""
        return self._parameters(tp, chosen=True)

    def _parameters(self, tp: int, chosen: bool) -> int:
        whole(tp, "tp")
        layer = self.attention.parameters(self.width, tp) + self.norm_vectors * self.width
        embedding = -(-self.vocabulary // tp) * self.width
        head = 0 if self.tied else embedding
        bias = -(-self.vocabulary // tp) if self.head_bias else 0
        last = self.last_norm_vectors * self.width
        return self.layers * layer + self._feed_forward(tp, chosen) + embedding + head + bias + last

    def _feed_forward(self, tp: int, chosen: bool) -> int:
        """Of all layers; of the experts those that a token chooses, or all."""
        inner = _part(self.feed_forward, tp, "feed-forward rows")
        bias = inner + self.width if self.feed_forward_bias else 0
        dense = self._matrices * self.width * inner + bias
        if self.experts is None:
            return self.layers * dense
        e = self.experts
        expert = self._matrices * self.width * _part(e.width, tp, "rows of an expert")
        routed = e.chosen if chosen else e.count
        mixture = (routed + e.shared) * expert + e.count * (self.width + 1)
        return e.dense_layers * dense + (self.layers - e.dense_layers) * mixture

    @property
    def _matrices(self) -> int:
        return 3 if self.gated else 2

    def pairs(self, start: int, tokens: int) -> int:
        """Σ over layers of the pairs (query, position attended to), for `tokens` tokens from
        position `start` on: token i attends to start + i positions, its own included, or to the
        window. Without windows L·(n·start + n(n+1)/2): the causal half, exactly."""
        full = tokens * start + tokens * (tokens + 1) // 2
        return (self.layers - self.windowed_layers) * full + self.windowed_layers * (
            full if self.window is None else _windowed(start, tokens, self.window)
        )

    def positions(self, start: int, tokens: int) -> int:
        """Σ over layers of the positions that these tokens attend to, each counted once."""
        full = start + tokens
        seen = full if self.window is None else min(full, self.window - 1 + tokens)
        return (self.layers - self.windowed_layers) * full + self.windowed_layers * seen


def _windowed(start: int, tokens: int, window: int) -> int:
    """Σ min(start + i, window) for i = 1 … tokens."""
    short = min(max(window - start, 0), tokens)
    return short * start + short * (short + 1) // 2 + (tokens - short) * window


MOST = 10**12
"""Of anything: more is a slip of the finger."""


def whole(value: object, name: str, least: int = 1) -> None:
    """Refuse what is no whole number, too small, or beyond `MOST`.

    Raises:
        ConfigError: naming it.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST:
        small = isinstance(value, int) and abs(value) <= MOST
        shown = repr(value) if small else "what was given"
        problem = f"{shown} is no whole number from {least} to {MOST:,}"
        raise ConfigError(name, problem, f"set another {name}")
