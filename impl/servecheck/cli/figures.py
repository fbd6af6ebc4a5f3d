"""The figures of a deployment: memory, time of a step, limits; as lines, JSON and a roofline.

Each is a `Row`: what a line says, and what JSON gets.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from servecheck.cli.terminal import Exit, escaped, say, say_json

if TYPE_CHECKING:
    from servespec.theory.memory import Deployment

BOUNDS = (25, 50, 100)
"""Inter-token bounds, in ms."""
LABEL = 38
"""Width of the left column."""


class Row(NamedTuple):
    key: str
    label: str
    shown: str
    value: object


class Asked(NamedTuple):
    """Sizes, checked, and with their defaults."""

    batch: int
    context: int
    prompt: int
    block_size: int
    utilisation: Fraction
    overhead: Fraction
    alpha: Fraction
    draft_cost: Fraction


def figures(d: Deployment, asked: Asked, plot: Path | None, as_json: bool) -> int:
    rows = [*_memory_rows(d, asked), *_time_rows(d, asked), *_limit_rows(d, asked)]
    if plot is not None:
        _plot_roofline(d, asked, plot)
        rows.append(Row("plot", "picture", escaped(str(plot)), str(plot)))
    if as_json:
        sizes = {"batch": asked.batch, "context": asked.context, "prompt": asked.prompt}
        told = {row.key: row.value for row in rows}
        say_json({"command": "arithmetic", **about(d), **sizes, **told})
    else:
        say(title(d))
        for row in rows:
            say(f"  {row.label:<{LABEL}}{row.shown}")
    return Exit.HOLDS


def title(d: Deployment) -> str:
    ranks = "" if d.tp == 1 else f", one of {d.tp} ranks"
    formats = f"{d.weights.name} weights, {d.cache.name} cache"
    return f"{d.model.name} on {d.device.name}{ranks}; {formats}"


def about(d: Deployment) -> dict[str, object]:
    """What figures are of, with all that was asked for in place of a default."""
    return {
        "model": d.model.name,
        "device": d.device.name,
        "flops": d.device.flops,
        "bandwidth": d.device.bandwidth,
        "memory": d.device.memory,
        "dtype": d.weights.name,
        "kv_dtype": d.cache.name,
        "tp": d.tp,
    }


def _memory_rows(d: Deployment, asked: Asked) -> Iterator[Row]:
    from servespec.theory.memory import (
        blocks_that_fit,
        kv_bytes,
        kv_bytes_per_token,
        sequences_that_fit,
        weight_bytes,
    )

    weights, token = weight_bytes(d), kv_bytes_per_token(d)
    one = kv_bytes(d, asked.context)
    room = (asked.utilisation, asked.overhead)
    fit = sequences_that_fit(d, asked.context, None, *room)
    blocks = blocks_that_fit(d, asked.block_size, *room)
    paged = sequences_that_fit(d, asked.context, asked.block_size, *room)
    parameters = d.model.parameters()
    yield Row("parameters", "parameters", f"{parameters:,}", parameters)
    beyond = "" if weights <= d.device.memory else ": more than there is, see --tp"
    shown = f"{_gb(weights)} of {_gb(Fraction(d.device.memory))}{beyond}"
    yield Row("weight_bytes", "weights", shown, number(weights))
    yield Row("kv_bytes_per_token", "KV cache a token", f"{_plain(token)} B", number(token))
    shown = f"{_gb(one)}, {asked.context:,} tokens"
    yield Row("kv_bytes_per_sequence", "KV cache a sequence", shown, number(one))
    yield Row("sequences", "sequences that fit, at most", f"{fit:,}", fit)
    shown = f"{blocks:,}, for {paged:,} sequences"
    yield Row("blocks", f"blocks of {asked.block_size} that fit, at most", shown, blocks)


def _time_rows(d: Deployment, asked: Asked) -> Iterator[Row]:
    from servespec.theory.roofline import Chunk, decodes, milliseconds, ridge_tokens, seconds, work

    users = decodes(asked.batch, asked.context)
    ridge = float(d.device.ridge)
    yield Row("ridge", "ridge", f"{ridge:.1f} FLOP/B", ridge)
    alone, mixed = work(d, users), work(d, (*users, Chunk(0, asked.prompt)))
    for key, label, done in (
        ("decode", f"decode step, batch {asked.batch:,}", alone),
        ("mixed", f"the same and {asked.prompt:,} of prompt", mixed),
    ):
        time, memory = seconds(d, done), done.intensity < d.device.ridge
        waits = "memory" if memory else "arithmetic"
        shown = (
            f"{milliseconds(time):.2f} ms, {float(done.intensity):.1f} FLOP/B: waits for {waits}"
        )
        told = {
            "ms": milliseconds(time),
            "flops": done.flops,
            "bytes": number(done.bytes),
            "intensity": float(done.intensity),
            "waits_for": waits,
        }
        yield Row(key, label, shown, told)
    ratio = float(seconds(d, mixed) / seconds(d, alone))
    yield Row("ratio", "pause, in decode steps", f"{ratio:.1f}", ratio)
    free = float(ridge_tokens(d, asked.batch, asked.context))
    shown = f"{free:.0f} a step take as long as its memory (linear layers alone)"
    yield Row("ridge_tokens", "tokens at the ridge", shown, free)


def _limit_rows(d: Deployment, asked: Asked) -> Iterator[Row]:
    from servespec.theory.break_even import last_paying_batch
    from servespec.theory.memory import sequences_that_fit
    from servespec.theory.roofline import crossing, decodes, largest_chunk, longest_crossing

    found, longest = crossing(d, asked.context), longest_crossing(d)
    limit = float(found.limit)
    where = "at any context" if longest is None else f"up to contexts of {longest:,}"
    crosses = "never" if found.batch is None else f"from batch {found.batch:,} on"
    shown = f"{crosses} (levels off at {limit:.1f} FLOP/B); some batch does {where}"
    if longest == 0:
        shown = f"never, at any context (levels off at {limit:.1f} FLOP/B)"
    fit = sequences_that_fit(d, asked.context, None, asked.utilisation, asked.overhead)
    if found.batch is not None and found.batch > fit:
        shown += f"; but {fit:,} fit"
    told = {"batch": found.batch, "levels_off_at": limit, "longest_context": longest}
    yield Row("crossing", "decode crosses the ridge", shown, told)
    users = decodes(asked.batch, asked.context)
    chunks = {ms: largest_chunk(d, users, Fraction(ms, 1000)) for ms in BOUNDS}
    shown = " / ".join("none" if n is None else f"{n:,}" for n in chunks.values())
    bounds = "/".join(map(str, BOUNDS))
    yield Row("largest_chunk", f"largest first chunk in {bounds} ms", shown, chunks)
    if asked.context == d.model.context:
        return  # no room for a draft
    last = last_paying_batch(d, asked.context, asked.alpha, asked.draft_cost)
    shown = {None: "at any batch", 0: "at no batch"}.get(last, f"up to batch {last}")
    label = f"drafts pay (α {float(asked.alpha):g}, c {float(asked.draft_cost):g})"
    yield Row("drafts_pay_up_to", label, shown, "any batch" if last is None else last)


def _plot_roofline(d: Deployment, asked: Asked, path: Path) -> None:
    from servecheck.view.charts import Point, write_roofline
    from servespec.theory.roofline import Chunk, decodes, work

    batches = sorted({1, max(asked.batch // 4, 1), asked.batch, 4 * asked.batch})
    points = [Point(f"decode, batch {b:,}", work(d, decodes(b, asked.context))) for b in batches]
    mixed = (*decodes(asked.batch, asked.context), Chunk(0, asked.prompt))
    name = f"batch {asked.batch:,} and a prompt of {asked.prompt:,}"
    write_roofline(d, asked.context, [*points, Point(name, work(d, mixed))], path)


def _gb(size: Fraction) -> str:
    return f"{float(size / 10**9):,.2f} GB"


def _plain(size: Fraction) -> str:
    return f"{size.numerator:,}" if size.denominator == 1 else f"{float(size):,.2f}"


def number(size: Fraction) -> int | float:
    return size.numerator if size.denominator == 1 else float(size)
