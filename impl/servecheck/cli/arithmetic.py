"""`servecheck arithmetic`: what a model on a device must take, by roofline and memory arithmetic.

Three answers of one command: the figures of a deployment (`figures`), the trade of chunked prefill
(`--chunked`, in `trade`), the catalogue (`--list`, in `catalogue`). What is printed is computed by
`servespec.theory`; here is read what is asked for.
"""

from __future__ import annotations

from fractions import Fraction
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from servecheck.cli.options import Json
from servecheck.cli.terminal import BadInput, escaped

if TYPE_CHECKING:
    from servespec.theory.devices import Device

PROMPT = 4096
MOST = 10**9
"""Of what is typed as a number with a point: more is a slip of the finger."""


def command(
    model: Annotated[str, typer.Option(metavar="NAME", help="See --list.")] = "llama-3-8b",
    device: Annotated[str, typer.Option(metavar="NAME", help="See --list.")] = "a100-80gb-sxm",
    context: Annotated[
        int, typer.Option(help="Tokens of each decoding sequence, its newest included.")
    ] = 2000,
    batch: Annotated[int, typer.Option(help="Decoding sequences.")] = 32,
    prompt: Annotated[
        int | None,
        typer.Option(help=f"Tokens of a prompt that arrives; {PROMPT}, or all the model takes."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Format of the weights.")] = "bf16",
    kv_dtype: Annotated[str, typer.Option(help="Format of the cache.")] = "bf16",
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks; figures are for one.")] = 1,
    tflops: Annotated[
        float | None, typer.Option(help="Dense bf16 TFLOP/s, instead of the device's.")
    ] = None,
    bandwidth: Annotated[float | None, typer.Option(help="GB/s, instead of the device's.")] = None,
    memory: Annotated[float | None, typer.Option(help="GB, instead of the device's.")] = None,
    utilisation: Annotated[
        float, typer.Option(help="Part of the memory that may be used, as vLLM's 0.9.")
    ] = 1.0,
    overhead: Annotated[
        float, typer.Option(help="GB that activations, graphs and the rest take.")
    ] = 0.0,
    block_size: Annotated[int, typer.Option(help="Token slots in a block.")] = 16,
    alpha: Annotated[float, typer.Option(help="Acceptance rate of drafts.")] = 0.8,
    draft_cost: Annotated[
        float, typer.Option(help="Cost of a draft, in decode steps of the model.")
    ] = 0.05,
    chunked: Annotated[
        bool, typer.Option("--chunked", help="Instead: chunked prefill, over token budgets.")
    ] = False,
    budgets: Annotated[
        str | None, typer.Option(metavar="N,N,…", help="With --chunked: the token budgets.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also a picture, .png or .svg; needs matplotlib."),
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Instead: the models, devices and formats, and sources.")
    ] = False,
    as_json: Json = False,
) -> int:
    """What serving must take at least: memory, time of a step, where it waits, what fits.

    Times are floors of the roofline model: perfect overlap, no activations, no kernel launches, no
    sampling, no communication. Numbers of sequences are upper bounds.
    """
    from servecheck.cli.catalogue import listed as list_catalogue
    from servecheck.cli.figures import Asked, figures
    from servecheck.cli.trade import trade
    from servecheck.view.curves import ending
    from servecheck.view.errors import ViewError
    from servespec.theory.dtypes import dtype as format_of
    from servespec.theory.memory import Deployment, fits_model
    from servespec.theory.models import model as model_of

    if listed:
        return list_catalogue(as_json)
    if budgets is not None and not chunked:
        raise BadInput("--budgets belongs to --chunked")
    shape = model_of(model)
    d = Deployment(
        shape, _device(device, tflops, bandwidth, memory), format_of(dtype), format_of(kv_dtype), tp
    )
    asked = Asked(
        batch,
        context,
        min(PROMPT, shape.context) if prompt is None else prompt,
        block_size,
        _exact("utilisation", utilisation),
        _exact("overhead", overhead) * 10**9,
        _exact("alpha", alpha),
        _exact("draft-cost", draft_cost),
    )
    fits_model(shape, "context", context)
    fits_model(shape, "prompt", asked.prompt)
    try:
        if plot is not None:
            ending(plot)
        if chunked:
            return trade(d, asked, _budgets(budgets), plot, as_json)
        return figures(d, asked, plot, as_json)
    except ViewError as error:
        raise BadInput(str(error)) from None


def _exact(name: str, number: float) -> Fraction:
    """What was typed, not its nearest binary number."""
    if not isfinite(number) or abs(number) > MOST:
        raise BadInput(f"--{name}: {number} is no number up to {MOST:,}")
    return Fraction(str(number))


def _device(
    name: str, tflops: float | None, bandwidth: float | None, memory: float | None
) -> Device:
    """A device of the catalogue, some of its numbers replaced, which its name then says."""
    from attrs import evolve

    from servespec.theory.devices import GIGA, TERA, device

    found = device(name)

    def given(option: str, number: float | None, unit: int, known: int) -> int:
        return known if number is None else int(_exact(option, number) * unit)

    other = evolve(
        found,
        flops=given("tflops", tflops, TERA, found.flops),
        bandwidth=given("bandwidth", bandwidth, GIGA, found.bandwidth),
        memory=given("memory", memory, GIGA, found.memory),
    )
    replaced = ((tflops, "TFLOP/s"), (bandwidth, "GB/s"), (memory, "GB"))
    said = ", ".join(f"{number:,g} {unit}" for number, unit in replaced if number is not None)
    return evolve(other, name=f"{found.name} with {said}") if said else found


def _budgets(text: str | None) -> tuple[int, ...]:
    from servespec.theory.chunking import BUDGETS

    if text is None:
        return BUDGETS
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise BadInput(f"--budgets: {escaped(text)!r} is no list of whole numbers such as 256,512")
    return tuple(sorted({int(part) for part in parts}))
