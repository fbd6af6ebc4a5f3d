"""Charts of the arithmetic, by matplotlib, which is asked for only here: a roofline, and the trade
of chunked prefill.

They are drawn from what `servespec.theory` computes; nothing is computed here but where to put it.
As in `png`, matplotlib is imported by name: servecheck works, and is type-checked, without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

from attrs import frozen

from servecheck.view.curves import FORMATS, ending
from servecheck.view.errors import ViewError
from servecheck.view.write import save
from servespec.theory.chunking import Trade
from servespec.theory.devices import TERA
from servespec.theory.memory import Deployment
from servespec.theory.roofline import Work, crossing, milliseconds, seconds

INK, MUTED, MEMORY, ARITHMETIC = "#222222", "#777777", "#2f6db3", "#c4512d"
"""What waits for memory, and what for arithmetic."""


@frozen
class Point:
    """A step on the roofline."""

    name: str
    work: Work


def write_roofline(d: Deployment, context: int, points: Sequence[Point], path: Path) -> None:
    """Draw steps under the roof of a device; decode has the context given. The steps are numbered,
    and named in the lower right, where no roof ever is.

    Raises:
        ViewError: no matplotlib, or the file cannot be written.
    """
    figure, axes = _canvas(path)
    peak, ridge = d.device.flops / TERA, float(d.device.ridge)
    limit = float(crossing(d, context).limit)
    low = min(0.5, *(float(p.work.intensity) / 3 for p in points))
    high = max(10 * ridge, 2 * limit, *(2 * float(p.work.intensity) for p in points))
    axes.set(xscale="log", yscale="log", xlim=(low, high))
    axes.set_ylim(peak * low / ridge, 4 * peak)
    axes.fill_between((low, ridge), 1e-9, 1e9, color=MEMORY, alpha=0.05, lw=0)
    axes.fill_between((ridge, high), 1e-9, 1e9, color=ARITHMETIC, alpha=0.05, lw=0)
    axes.axvline(ridge, color=MUTED, lw=0.8, ls=":")
    axes.text(ridge / 1.12, 2.6 * peak, "waits for memory", color=MEMORY, ha="right")
    axes.text(ridge * 1.12, 2.6 * peak, "waits for arithmetic", color=ARITHMETIC)
    axes.text(ridge, 1.15 * peak, f"ridge {ridge:.0f} FLOP/B ", color=INK, ha="right")
    axes.text(high / 1.1, peak / 1.1, f"{peak:,.0f} TFLOP/s", color=INK, ha="right", va="top")
    axes.plot((low, ridge, high), (peak * low / ridge, peak, peak), color=INK, lw=1.8, zorder=2)
    roof = peak * min(limit / ridge, 1.0)
    axes.plot((limit, limit), (1e-9, roof), color=MUTED, lw=0.8, ls="--")
    levels = f"decode levels off at {limit:.0f} FLOP/B"
    place = (limit / 1.05, roof / 2)
    axes.text(*place, levels, color=MUTED, ha="right", va="top", size=8.5, rotation="vertical")
    for number, point in enumerate(points, 1):
        time, x = seconds(d, point.work), float(point.work.intensity)
        y = float(point.work.flops / time) / TERA
        colour = MEMORY if x < ridge else ARITHMETIC
        axes.plot((x,), (y,), "o", color=colour, ms=6, zorder=3)
        up = 7 + 9 * _crowd(points, number - 1)
        axes.annotate(
            f"{number}",
            (x, y),
            xytext=(-7 if x < ridge else 0, up),
            textcoords="offset points",
            ha="center",
            color=colour,
            weight="bold",
        )
        axes.text(
            0.985,
            0.03 + 0.055 * (len(points) - number),
            f"{number}  {point.name}: {_ms(milliseconds(time))}",
            transform=axes.transAxes,
            ha="right",
            color=colour,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5},
        )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.set_xlabel("arithmetic intensity, FLOP a byte")
    axes.set_ylabel("attainable rate, TFLOP/s")
    axes.set_title(f"{_name(d)}, contexts of {context:,} tokens", loc="left")
    _save(figure, path)


def _crowd(points: Sequence[Point], place: int) -> int:
    """How many steps before this one are so near that their numbers would hide each other."""
    here = points[place].work.intensity
    return sum(
        Fraction(10, 11) < here / p.work.intensity < Fraction(11, 10) for p in points[:place]
    )


def write_trade(d: Deployment, rows: Sequence[Trade], plain: float, title: str, path: Path) -> None:
    """Draw longest pause and first token over the budget, in ms; `plain` is the step of the users
    alone.

    Raises:
        ViewError: no matplotlib, or the file cannot be written.
    """
    figure, axes = _canvas(path)
    axes.set(xscale="log", yscale="log")
    come = [(r.budget, milliseconds(r.first_token)) for r in rows if r.first_token is not None]
    pauses = [(r.budget, milliseconds(r.pause)) for r in rows if r.pause is not None]
    for series, name, colour in (
        (come, "first token of the newcomer", ARITHMETIC),
        (pauses, "longest pause of the users", MEMORY),
    ):
        if not series:
            continue
        budgets, times = zip(*series, strict=True)
        axes.plot(budgets, times, "o-", color=colour, label=name, ms=5, lw=1.6)
        up = colour == ARITHMETIC
        for budget, time in series:
            axes.annotate(
                _number(time),
                (budget, time),
                xytext=(0, 8) if up else (8, -13),
                textcoords="offset points",
                ha="center" if up else "left",
                color=colour,
            )
    axes.axhline(plain, color=MUTED, lw=0.8, ls="--")
    axes.text(
        0.99,
        plain,
        f"users alone: {_ms(plain)}",
        color=MUTED,
        ha="right",
        va="bottom",
        transform=axes.get_yaxis_transform(),
    )
    least, most = plain, max((time for _, time in come + pauses), default=plain)
    axes.set_ylim(least / 1.6, most * 1.9)
    axes.set_xlim(rows[0].budget / 1.35, rows[-1].budget * 1.55)
    axes.set_xticks([r.budget for r in rows], [f"{r.budget:,}" for r in rows])
    axes.minorticks_off()
    ticks = [
        t
        for t in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
        if least / 1.6 <= t <= most * 1.9
    ]
    axes.set_yticks(ticks, [f"{t:,}" for t in ticks])
    axes.grid(axis="y", color="#dddddd", lw=0.6)
    axes.set_xlabel("token budget of a step")
    axes.set_ylabel("ms, at least")
    axes.set_title(f"{_name(d)}: {title}", loc="left")
    if come or pauses:
        figure.legend(frameon=False, loc="outside lower center", ncols=2)
    _save(figure, path)


def _name(d: Deployment) -> str:
    ranks = "" if d.tp == 1 else f" × {d.tp}"
    return f"{d.model.name} on {d.device.name}{ranks}"


def _ms(time: float) -> str:
    return f"{_number(time)} ms"


def _number(time: float) -> str:
    return f"{time:.3g}" if time < 10 else f"{time:,.1f}"


def _canvas(path: Path) -> tuple[Any, Any]:
    try:
        figures = import_module("matplotlib.figure")
    except ImportError as error:
        raise ViewError(
            f"{path}: a chart needs matplotlib, which cannot be imported ({error}); "
            "pip install 'servecheck[view]', or leave out --plot"
        ) from None
    figure = figures.Figure(figsize=(8.2, 5.0), layout="constrained")
    axes = figure.add_subplot()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    """The same chart is the same file."""
    kind = ending(path)
    out = BytesIO()
    matplotlib = import_module("matplotlib")
    with matplotlib.rc_context({"font.size": 9.5, "svg.hashsalt": "servecheck"}):
        figure.savefig(out, format=kind.removeprefix("."), dpi=144, metadata=FORMATS[kind])
    save(out.getvalue(), path)
