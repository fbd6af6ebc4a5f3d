"""Roofline: FLOPs, bytes and time of a step made of any mix of prefill chunks and decodes.

Theory of operation. A step feeds the model *chunks*: `tokens` tokens from position `start` on. A
decode is a chunk of one token; a plan of the machine is a list of chunks (`of_plan`). With N
parameters, T tokens in all and arithmetic rate P, bandwidth W of a rank:

    FLOPs = 2·N·T + (FLOPs of a pair) · Σ positions attended to      a pair: 4·heads·head_dim
    bytes = weights once + KV of every position attended to, once a sequence [+ KV written]
    time  = max(FLOPs / P, bytes / W)

A *context* of c tokens counts the decoded token's own position, so a decode attends to c positions,
and a whole prompt of n tokens to n(n+1)/2 of the n² pairs: the causal half, exactly. Everything is
an int or a Fraction; seconds become floats only when printed.

Left out, so that times are floors: activations, KV writes (unless asked for), efficiency of kernels
(aiconfigurator reckons 0.8 of the bandwidth and 3 µs a kernel), sampling, the CPU's time,
communication between ranks. The other way: all of N is counted for every token and read in every
step, though the input embedding is looked up, the head is applied only where a token is sampled,
and a small batch reads only the experts it chooses. Arithmetic is at the rate of bf16 whatever the
formats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from math import ceil, floor

from attrs import field, frozen

from servespec.plan import Plan
from servespec.theory.memory import Deployment, fits_model, row_bytes, weight_bytes
from servespec.theory.register import Kind, theorem
from servespec.theory.shapes import whole


@frozen
class Chunk:
    """Consecutive tokens of one sequence in one step; or of several sequences alike.

    Raises:
        ConfigError: a position below 0, no token, or no sequence.
    """

    start: int = field()
    """Position of the first token: so many are in the cache already."""
    tokens: int = field()
    sequences: int = 1

    def __attrs_post_init__(self) -> None:
        whole(self.start, "start", 0)
        whole(self.tokens, "tokens")
        whole(self.sequences, "batch")


def decodes(batch: int, context: int) -> tuple[Chunk, ...]:
    """One token for each of `batch` sequences, which are then `context` tokens long."""
    whole(context, "context")
    return (Chunk(context - 1, 1, batch),)


def of_plan(plan: Plan) -> tuple[Chunk, ...]:
    """What a planned step of the machine computes; drafts too, and requests that have left."""
    return tuple(Chunk(e.start, len(e.tokens)) for e in plan.entries if e.tokens)


@frozen
class Work:
    """What a step costs a rank, in FLOPs and bytes."""

    linear: int
    """2·N·T."""
    attention: int
    weights: Fraction
    kv_read: Fraction
    kv_written: Fraction

    @property
    def flops(self) -> int:
        return self.linear + self.attention

    @property
    def bytes(self) -> Fraction:
        return self.weights + self.kv_read + self.kv_written

    @property
    def intensity(self) -> Fraction:
        """FLOPs a byte."""
        return self.flops / self.bytes


@theorem("ARI-1", Kind.X)
def work(d: Deployment, step: Iterable[Chunk], kv_writes: bool = False) -> Work:
    """A step of any mix of prefill chunks and decodes takes 2·N·T FLOPs for its T tokens and
    4·heads·head_dim a layer (MLA: 2·heads·(2·latent + rotary)) for each position that a token
    attends to; it reads the weights once, and each attended position of a sequence once. From this
    follow the tables of memory and time.

    Raises:
        ConfigError: a chunk reaches beyond the model's context.
    """
    m = d.model
    tokens = pairs = positions = 0
    for chunk in step:
        fits_model(m, "context", chunk.start + chunk.tokens)
        tokens += chunk.sequences * chunk.tokens
        pairs += chunk.sequences * m.pairs(chunk.start, chunk.tokens)
        positions += chunk.sequences * m.positions(chunk.start, chunk.tokens)
    row = row_bytes(d)
    return Work(
        linear=2 * m.active(d.tp) * tokens,
        attention=m.attention.pair_flops(d.tp) * pairs,
        weights=weight_bytes(d),
        kv_read=row * positions,
        kv_written=row * m.layers * tokens if kv_writes else Fraction(0),
    )


def seconds(d: Deployment, done: Work) -> Fraction:
    """Time of a step: arithmetic and memory overlap perfectly, the slower one counts."""
    return max(Fraction(done.flops, d.device.flops), done.bytes / d.device.bandwidth)


def step_time(d: Deployment, step: Iterable[Chunk]) -> Fraction:
    """Seconds, at least."""
    return seconds(d, work(d, step))


def ridge_tokens(d: Deployment, batch: int, context: int) -> Fraction:
    """Tokens whose linear layers take as long as the memory traffic of a decode step: about so
    many fit into its step without making it longer, attention not counted."""
    return work(d, decodes(batch, context)).bytes * d.device.ridge / (2 * d.model.active(d.tp))


# --- does decode ever cross the ridge? ------------------------------------------------------


@frozen
class Crossing:
    """How the intensity of a decode step grows with its batch, at one context."""

    limit: Fraction
    """FLOPs a byte that it approaches and never reaches."""
    batch: int | None
    """The smallest batch at or beyond the ridge; None: there is none."""


@theorem("ARI-2", Kind.X)
def crossing(d: Deployment, context: int) -> Crossing:
    """A decode step of batch B at context c has intensity B·f(c) / (w + B·m(c)), with f FLOPs and m
    bytes of cache a sequence and w bytes of weights: it rises with B and levels off at f(c)/m(c).
    It crosses the ridge r at B = ⌈r·w / (f(c) − r·m(c))⌉ if f(c) > r·m(c), and never otherwise.

    Without windows f(c) = 2N + a·c and m(c) = k·c, so it crosses for some batch iff
    c·(r·k − a) < 2N (`longest_crossing`).
    """
    one = work(d, decodes(1, context))
    ridge = d.device.ridge
    gap = one.flops - ridge * one.kv_read
    batch = ceil(ridge * one.weights / gap) if gap > 0 else None
    return Crossing(one.flops / one.kv_read, batch)


def longest_crossing(d: Deployment) -> int | None:
    """The longest context at which decode crosses the ridge at some batch: the largest c with
    c·(r·k − a) < 2N, with windows counted layer by layer; None: it does at any length."""
    m = d.model
    lacks = d.device.ridge * row_bytes(d) - m.attention.pair_flops(d.tp)
    if lacks <= 0:
        return None
    spare, plain = Fraction(2 * m.active(d.tp)), m.layers - m.windowed_layers
    if m.window is not None and spare > lacks * m.layers * m.window:
        if not plain:
            return None
        return ceil((spare / lacks - m.windowed_layers * m.window) / plain) - 1
    return ceil(spare / lacks / m.layers) - 1


# --- the largest chunk ----------------------------------------------------------------------


def largest_chunk(
    d: Deployment, beside: tuple[Chunk, ...], bound: Fraction, start: int = 0
) -> int | None:
    """Most tokens of a prompt, from position `start` on, that can be computed beside these chunks
    in a step of at most `bound` seconds: 0 if no token fits, None if the chunks alone take longer.
    No more than the model's context has room for."""
    if step_time(d, beside) > bound:
        return None

    def holds(tokens: int) -> bool:
        return tokens == 0 or step_time(d, (*beside, Chunk(start, tokens))) <= bound

    return last(holds, d.model.context - start)


def last(holds: Callable[[int], bool], most: int) -> int:
    """The largest n ≤ most for which something holds that holds for 0 and, once it does not, for
    nothing larger."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def milliseconds(time: Fraction) -> float:
    return float(time * 1000)


def truncated(time: Fraction, unit: Fraction) -> int:
    """Whole units, the rest dropped: how "226 ms" and "18×" come from 226.70 and 18.9."""
    return floor(time / unit)
