"""What drafts gain, as a picture: speed-up over γ, by matplotlib, which is asked for only here.

As in `servecheck.view.png` it is imported by name at run time: servecheck works, and is
type-checked, without it. All numbers come from `servespec.theory.speculation`.
"""

from __future__ import annotations

import warnings
from fractions import Fraction
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

from servecheck.view.errors import ViewError
from servespec.errors import ConfigError
from servespec.theory.speculation import MOST_DRAFTS, best_gamma, expected_tokens, speedup

FORMATS = {".png": {"Software": None}, ".svg": {"Date": None}}
"""Endings, and what to leave out of the file so that it is the same each time."""
BEYOND = 5
"""Drafts shown beyond the best γ and the γ asked for."""
MOST_DOTS = 60
"""Longer lines are drawn without a dot at each γ."""
OTHERS = tuple(Fraction(tenths, 10) for tenths in (5, 6, 7, 8, 9))
"""Values of α drawn in grey beside the one asked for."""
BLUE, ORANGE, GREY = "#1f4e9c", "#c2570c", "#9a9a9a"


def ending(place: Path) -> str:
    """The format that a file name asks for.

    Raises:
        ViewError: it is none of FORMATS.
    """
    found = place.suffix.lower()
    if found not in FORMATS:
        raise ViewError(f"{place}: a plot is a {' or '.join(FORMATS)}; name the file so")
    return found


def speculation_plot(alpha: Fraction, gamma: int, cost: Fraction, kind: str) -> bytes:
    """The content of a picture file: speed-up against γ at this α and c, other α in grey, and
    where the best γ and the one asked for stand.

    Raises:
        ViewError: matplotlib is not installed.
        ConfigError: α, γ or c is out of range.
    """
    try:
        matplotlib = import_module("matplotlib")
        figures = import_module("matplotlib.figure")
    except ImportError as error:
        raise ViewError(
            f"a plot needs matplotlib, which cannot be imported ({error}); "
            "pip install 'servecheck[view]', or leave --plot out"
        ) from None
    gain = float(speedup(alpha, gamma, cost))
    try:
        best = best_gamma(alpha, cost)
    except ConfigError:  # α and c are as they should be: it is above all that is drawn
        best = None
    last = min(max(gamma, best or 0, 6) + BEYOND, MOST_DRAFTS)
    figure = figures.Figure(figsize=(8, 5.6), layout="constrained")
    axes = figure.add_subplot()
    ends = _curves(axes, alpha, cost, last)
    style = {"linestyle": "none", "zorder": 4, "clip_on": False}
    axes.plot(
        [gamma],
        [gain],
        marker="s",
        markersize=10,
        markerfacecolor="none",
        markeredgecolor=ORANGE,
        markeredgewidth=1.8,
        label=f"γ = {gamma}, as asked: {gain:.2f}",
        **style,
    )
    if best is not None:
        gain = float(speedup(alpha, best, cost))
        said = f"best, γ = {best}: {gain:.2f}"
        axes.plot([best], [gain], marker="*", markersize=15, color=ORANGE, label=said, **style)
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":", label="the target alone")
    axes.set_xlabel("γ, drafts a round")
    axes.set_ylabel("speed-up: tokens for the cost of one target pass")
    axes.set_title("Speculative decoding: speed-up against drafts (Leviathan et al. 2023, Thm 3.8)")
    axes.set_xlim(0, last)
    axes.set_ylim(bottom=0)
    _label(axes, last, ends)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    out = BytesIO()
    with warnings.catch_warnings(), matplotlib.rc_context({"svg.hashsalt": "servecheck"}):
        warnings.simplefilter("ignore")  # a letter that the font lacks is drawn as a box
        figure.savefig(out, format=kind.removeprefix("."), dpi=144, metadata=FORMATS[kind])
    return out.getvalue()


def _curves(axes: Any, alpha: Fraction, cost: Fraction, last: int) -> list[tuple[float, str]]:
    """The line asked for, what it would be if drafts were free, and other α in grey; where each
    grey line ends, and its name."""
    drafts = range(last + 1)
    ends: list[tuple[float, str]] = []
    for other in OTHERS:
        if other != alpha:
            gains = [float(speedup(other, n, cost)) for n in drafts]
            label = None if ends else f"other α, c = {float(cost):g}"
            axes.plot(drafts, gains, color=GREY, linewidth=0.9, zorder=1, label=label)
            ends.append((gains[-1], f"α = {float(other):g}"))
    if cost:
        tokens = [float(expected_tokens(alpha, n)) for n in drafts]
        label = f"α = {float(alpha):g}, were drafts free: tokens a target pass"
        axes.plot(drafts, tokens, color=BLUE, linestyle="--", linewidth=1.2, label=label)
    gains = [float(speedup(alpha, n, cost)) for n in drafts]
    axes.plot(
        drafts,
        gains,
        color=BLUE,
        marker="o" if last <= MOST_DOTS else None,
        markersize=4,
        linewidth=2,
        clip_on=False,
        label=f"α = {float(alpha):g}, c = {float(cost):g}",
    )
    return ends


def _label(axes: Any, x: int, ends: list[tuple[float, str]]) -> None:
    """Names at the ends of lines; one that would cover the name below it is left out."""
    apart, below = axes.get_ylim()[1] / 28, float("-inf")
    for y, name in sorted(ends):
        if y - below >= apart:
            below = y
            axes.annotate(
                name,
                (x, y),
                xytext=(8, 0),
                textcoords="offset points",
                color="#6b6b6b",
                fontsize=9,
                va="center",
                annotation_clip=False,
            )
