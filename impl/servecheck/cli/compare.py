"""`servecheck compare`: one stream of requests under two policies or more, side by side.

Theory of operation. The stream is read from a file or drawn from a seed
(`servecheck.workload.arrivals`), served by the fast engine once for each policy
(`servecheck.workload.serve`), and here the figures become columns, one JSON object, or a picture
(`servecheck.view.gantt`). Sizes are the same for all; those that are not given are out of the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from servecheck.cli.options import Json
from servecheck.cli.terminal import BadInput, Exit, escaped, say, say_json

if TYPE_CHECKING:
    from servecheck.workload.serve import Figures, Order
    from servespec.config import Config
    from servespec.policy import Policy
    from servespec.theory.stream import Events, Stream

ENGINE = "fast"
Range = tuple[int, int]
MOST_BLOCKS = 10_000_000
"""The engine holds an object for each."""
MOST_TOKENS = 100_000_000
"""Of the prompts of a drawn stream."""


def command(
    stream: Annotated[
        Path | None,
        typer.Argument(
            metavar="STREAM",
            help="Requests, one JSON object a line, as in traces/*/*.workload.jsonl; drawn if none "
            "is given.",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A profile, such as VLLM_0_33; give two or more."),
    ] = None,
    slots: Annotated[int, typer.Option(min=1, help="Requests that run at once.")] = 8,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens in a block.")] = 16,
    blocks: Annotated[
        int | None, typer.Option(min=1, help="Blocks to hand out; enough for all, if not given.")
    ] = None,
    budget: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a step; enough for all, if not given.")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a text; the longest, if not given.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of a drawn stream.")] = 0,
    requests: Annotated[int, typer.Option(min=1, help="Of a drawn stream.")] = 40,
    gap: Annotated[Range, typer.Option(help="Steps between arrivals, from and to.")] = (0, 6),
    prompt: Annotated[Range, typer.Option(help="Tokens of a prompt, from and to.")] = (16, 128),
    output: Annotated[Range, typer.Option(help="Tokens of output, from and to.")] = (8, 64),
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw who sits where: an .svg or .png.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Steps after which to give up.")] = 100_000,
    as_json: Json = False,
) -> int:
    """Serve one stream under several policies, and compare steps, latency, hits, evictions.

    MINIATURE and STATIC are compared if no policy is named. The fast engine serves; it refines the
    specification, so the specification would come to the same. A latency is counted in steps, from
    arrival to end. Utilisation is tokens delivered per slot and step. Exit code 3: some request did
    not end.
    """
    from servecheck.view.errors import ViewError
    from servecheck.workload.arrivals import Drawing, drawn, read_stream
    from servecheck.workload.serve import figures, order, served

    names = list(policy or ("MINIATURE", "STATIC"))
    policies = [_policy(name) for name in names]
    if len(set(names)) < max(len(names), 2):
        raise BadInput("give two or more different policies, by --policy NAME --policy NAME")
    if plot is not None and plot.suffix.lower() not in (".svg", ".png"):
        raise BadInput(f"{plot}: what to draw is told by the ending; give an .svg or a .png")
    if stream is None and requests * max(prompt) > MOST_TOKENS:
        raise BadInput(
            f"{requests:,} prompts of up to {max(prompt):,} tokens are more than {MOST_TOKENS:,} "
            "tokens; give fewer --requests, or a shorter --prompt"
        )
    asked = (
        drawn(Drawing(requests=requests, gap=gap, prompt=prompt, output=output), seed)
        if stream is None
        else read_stream(stream)
    )
    configs = [
        _config(asked, one, slots, block_size, blocks, budget, max_model_len) for one in policies
    ]
    runs = [
        served(config, one, asked, limit) for config, one in zip(configs, policies, strict=True)
    ]
    found = [figures(asked, steps, slots) for steps in runs]
    orders = [order(runs[0], other) for other in runs[1:]]
    source = f"drawn, seed {seed}" if stream is None else str(stream)
    if plot is not None:
        try:
            _draw(plot, source, names, runs, found, slots)
        except ViewError as error:
            raise BadInput(str(error)) from None
    if as_json:
        say_json(_told(source, asked, names, configs, found, orders, plot))
    else:
        for line in _lines(source, asked, names, configs, found, orders):
            say(line)
        if plot is not None:
            say(escaped(f"drawn in {plot}"))
    return Exit.UNDETERMINED if any(f.left for f in found) else Exit.HOLDS


def _policy(name: str) -> Policy:
    from servespec.policy import NAMED

    if name not in NAMED:
        raise BadInput(escaped(f"--policy {name}: no such profile; take one of {', '.join(NAMED)}"))
    return NAMED[name]


def _config(
    stream: Stream,
    policy: Policy,
    slots: int,
    block_size: int,
    blocks: int | None,
    budget: int | None,
    max_model_len: int | None,
) -> Config:
    from attrs import evolve

    from servecheck.workload.serve import unhindered

    roomy = unhindered(stream, slots, block_size, policy)
    num_blocks = roomy.num_blocks if blocks is None else blocks + policy.first_block
    if num_blocks > MOST_BLOCKS:
        raise BadInput(
            f"{num_blocks:,} blocks are more than {MOST_BLOCKS:,}; give fewer --blocks or --slots, "
            "a larger --block-size, or a stream of shorter texts"
        )
    return evolve(
        roomy,
        num_blocks=num_blocks,
        max_num_batched_tokens=budget or roomy.max_num_batched_tokens,
        max_model_len=max_model_len or roomy.max_model_len,
    )


# --- lines -----------------------------------------------------------------------------------


def _lines(
    source: str,
    stream: Stream,
    names: Sequence[str],
    configs: Sequence[Config],
    found: Sequence[Figures],
    orders: Sequence[Order],
) -> Iterator[str]:
    from servespec.config import usable_blocks

    config, policy = configs[0], _policy(names[0])  # what is said here is the same for all
    many = f"{len(stream.arrivals)} requests ({escaped(source)})"
    yield f"{many}, engine {ENGINE}, {config.max_num_seqs} slots"
    usable = usable_blocks(config, policy)
    yield (
        f"{usable:,} blocks of {config.block_size} tokens to hand out; at most "
        f"{config.max_num_batched_tokens:,} tokens a step, {config.max_model_len:,} a text"
    )
    yield ""
    columns = [max(len(name), 9) for name in names]
    label = max(map(len, ROWS))
    yield f"{'':<{label}}" + "".join(
        f"  {name:>{width}}" for name, width in zip(names, columns, strict=True)
    )
    cells = [_cells(figures) for figures in found]
    for row, name in enumerate(ROWS):
        yield f"{name:<{label}}" + "".join(
            f"  {column[row]:>{width}}" for column, width in zip(cells, columns, strict=True)
        )
    for other, compared in zip(names[1:], orders, strict=True):
        yield ""
        yield f"{names[0]} beside {other}"
        yield f"  starts: {compared.starts_earlier} earlier, {compared.starts_later} later"
        yield f"  ends:   {compared.ends_earlier} earlier, {compared.ends_later} later"


ROWS = (
    "steps",
    "ended",
    "refused",
    "not ended",
    "latency mean",
    "latency p50",
    "latency p99",
    "utilisation",
    "hit tokens",
    "computed tokens",
    "evictions",
    "preemptions",
)


def _cells(figures: Figures) -> tuple[str, ...]:
    counts, latency = figures.counts, figures.latency
    return (
        f"{counts.steps:,}",
        f"{figures.ended:,}",
        f"{counts.refusals:,}",
        f"{figures.left:,}",
        "-" if latency is None else f"{latency.mean:,.1f}",
        "-" if latency is None else f"{latency.p50:,}",
        "-" if latency is None else f"{latency.p99:,}",
        f"{figures.utilization:.2f}",
        f"{counts.hit_tokens:,}",
        f"{counts.computed_tokens:,}",
        f"{counts.evictions:,}",
        f"{counts.preemptions:,}",
    )


# --- JSON and the picture --------------------------------------------------------------------


def _told(
    source: str,
    stream: Stream,
    names: Sequence[str],
    configs: Sequence[Config],
    found: Sequence[Figures],
    orders: Sequence[Order],
    plot: Path | None,
) -> dict[str, object]:
    from attrs import asdict

    return {
        "command": "compare",
        "verdict": "undetermined" if any(f.left for f in found) else "holds",
        "engine": ENGINE,
        "stream": source,
        "requests": len(stream.arrivals),
        "policies": [
            {"policy": name, "config": asdict(config), **asdict(figures)}
            for name, config, figures in zip(names, configs, found, strict=True)
        ],
        "order": [
            {"first": names[0], "second": other, **asdict(compared)}
            for other, compared in zip(names[1:], orders, strict=True)
        ],
        "plot": None if plot is None else str(plot),
    }


def _draw(
    path: Path,
    source: str,
    names: Sequence[str],
    runs: Sequence[tuple[Events, ...]],
    found: Sequence[Figures],
    slots: int,
) -> None:
    from servecheck.view.gantt import Chart, gantt
    from servecheck.view.png import png
    from servecheck.view.svg import svg
    from servecheck.view.write import save

    charts = [
        Chart(name, _caption(figures), steps)
        for name, figures, steps in zip(names, found, runs, strict=True)
    ]
    drawing = gantt(f"One stream, {len(names)} policies: {source}", charts, slots)
    content = png(drawing) if path.suffix.lower() == ".png" else svg(drawing).encode()
    save(content, path)


def _caption(figures: Figures) -> str:
    counts, latency = figures.counts, figures.latency
    mean = "" if latency is None else f"mean latency {latency.mean:,.1f}, p99 {latency.p99:,}, "
    return (
        f"{counts.steps:,} steps, {mean}utilisation {figures.utilization:.2f}, "
        f"{counts.hit_tokens:,} hit tokens, {counts.evictions:,} evictions, "
        f"{counts.preemptions:,} preemptions"
    )
