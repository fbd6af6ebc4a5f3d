"""`servecheck speculation`: what drafts are worth, by the theory of the specification."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from servecheck.cli.options import Json
from servecheck.cli.terminal import BadInput, Exit, escaped, say, say_json

if TYPE_CHECKING:
    from servespec.theory.speculation import Interval

NUMBER = re.compile(r"-?(\d{1,18}/\d{1,18}|\d{1,18}(\.\d{0,18})?|\.\d{1,18})", re.ASCII)
"""What is read exactly. An exponent could ask for a number of any length."""
ROWS_FROM_START = 8
"""γ up to here, and those around the best and the one asked for, have a row."""


def command(
    alpha: Annotated[
        str,
        typer.Option(
            metavar="NUMBER",
            help="α, the chance that a draft is accepted, given that those before it were: "
            "0.8 or 4/5.",
        ),
    ],
    gamma: Annotated[int, typer.Option(metavar="N", help="γ, drafts a round.")],
    cost: Annotated[
        str,
        typer.Option(
            metavar="NUMBER", help="c, the cost of a drafted token, in passes of the target."
        ),
    ] = "0",
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw speed-up against γ: a .png or .svg."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Tokens a target pass, speed-up, and the best number of drafts.

    By Leviathan et al. 2023, computed exactly. Acceptances are taken as independent, and a pass
    over γ + 1 positions as no dearer than one over one: true while decoding is bound by memory. A
    --plot needs matplotlib.
    """
    from servecheck.view.errors import ViewError

    a, c = exact("--alpha", alpha), exact("--cost", cost)
    found = _found(a, gamma, c)
    if plot is not None:
        try:
            _draw(found, plot)
        except ViewError as error:
            raise BadInput(str(error)) from None
    if as_json:
        say_json({**_as_json(found), "plot": None if plot is None else str(plot)})
        return Exit.HOLDS
    _tell(found)
    if plot is not None:
        say(f"{escaped(str(plot))}: speed-up against γ")
    return Exit.HOLDS


class Row(NamedTuple):
    gamma: int
    tokens: float
    operations: float
    speedup: float


class Found(NamedTuple):
    """All that is said, and drawn."""

    alpha: Fraction
    cost: Fraction
    asked: Row
    best: Row | None
    above: int | None
    """The best γ lies above this many drafts, and is not looked for."""
    limit: Fraction | None
    """Where no γ is the best: what the speed-up comes near, if it is bounded."""
    ties: bool
    """γ* + 1 is just as fast as γ*."""
    heuristic: Interval | None
    rows: list[Row]


def _found(alpha: Fraction, gamma: int, cost: Fraction) -> Found:
    from servespec.errors import ConfigError
    from servespec.theory.speculation import (
        MOST_DRAFTS,
        best_gamma,
        expected_tokens,
        limit_of_speedup,
        operations,
        speedup,
    )

    def row(n: int) -> Row:
        exact = expected_tokens(alpha, n), operations(alpha, n, cost), speedup(alpha, n, cost)
        return Row(n, *map(float, exact))

    asked, best, above = row(gamma), None, None
    try:
        best = best_gamma(alpha, cost)
    except ConfigError:  # α and c are as they should be: they have made a row
        above = MOST_DRAFTS
    most = min(max(gamma, best or 0) + 1, MOST_DRAFTS)
    around = {n + d for n in (gamma, best or 0) for d in (-1, 0, 1)}
    shown = sorted(n for n in {*range(ROWS_FROM_START + 1), *around} if 0 <= n <= most)
    return Found(
        alpha,
        cost,
        asked,
        None if best is None else row(best),
        above,
        limit_of_speedup(alpha, cost) if best is above is None else None,
        best is not None
        and best < MOST_DRAFTS
        and speedup(alpha, best, cost) == speedup(alpha, best + 1, cost),
        _heuristic(alpha, cost),
        [row(n) for n in shown],
    )


def _draw(found: Found, place: Path) -> None:
    from servecheck.view.curves import ending, speculation_plot
    from servecheck.view.write import save

    kind = ending(place)
    save(speculation_plot(found.alpha, found.asked.gamma, found.cost, kind), place)


def _as_json(found: Found) -> dict[str, object]:
    heuristic, best = found.heuristic, found.best
    return {
        "command": "speculation",
        "alpha": str(found.alpha),
        "cost": str(found.cost),
        **found.asked._asdict(),
        "best_gamma": None if best is None else best.gamma,
        "best_speedup": None if best is None else best.speedup,
        "best_gamma_above": found.above,
        "limit": None if found.limit is None else float(found.limit),
        "heuristic": None if heuristic is None else [float(heuristic.low), float(heuristic.high)],
        "rows": [row._asdict() for row in found.rows],
    }


def _tell(found: Found) -> None:
    asked, best = found.asked, found.best
    say(f"α = {_short(found.alpha)}, γ = {asked.gamma}, c = {_short(found.cost)}")
    say(f"expected tokens a target pass: {asked.tokens:.3f}")
    say(f"speed-up: {asked.speedup:.3f}")
    say(_about_best(found))
    if found.heuristic is not None:
        say(
            "draft length of assisted generation (+2, or −1), in the long run: "
            f"speed-up {float(found.heuristic.low):.3f}"
        )
    say("")
    say("   γ   tokens  operations*  speed-up")
    for row in found.rows:
        marks = ["asked"] * (row.gamma == asked.gamma) + ["best"] * (row == best)
        line = f"{row.gamma:4}  {row.tokens:7.3f}  {row.operations:11.3f}  {row.speedup:8.3f}"
        say(line, *((f"  {mark}", "bold") for mark in marks))
    say("")
    say("* a token, in those of the target alone, if c is the draft's share of operations too")


def exact(option: str, text: str) -> Fraction:
    """A decimal or a fraction as it is written, not as the nearest float.

    Raises:
        BadInput: it is neither, has more than 18 digits, or divides by 0.
    """
    if NUMBER.fullmatch(text) is None:
        raise BadInput(
            f"{option}: {escaped(text[:40])!r} is no number; "
            "write 0.8 or 4/5, with at most 18 digits"
        )
    try:
        return Fraction(text)
    except ZeroDivisionError:
        raise BadInput(f"{option}: {text} divides by 0; set another number") from None


def _about_best(found: Found) -> str:
    best = found.best
    if found.above is not None:
        return f"best γ: above {found.above}"
    if best is None:
        near = "without end" if found.limit is None else f"towards {float(found.limit):.3f}"
        return f"best γ: none, every further draft gains, {near}"
    if best.gamma == 0:
        return "best γ: 0, drafts do not gain where α ≤ c"
    also = f", and just so γ = {best.gamma + 1}" if found.ties else ""
    return f"best γ: {best.gamma}, speed-up {best.speedup:.3f}{also}"


def _heuristic(alpha: Fraction, cost: Fraction) -> Interval | None:
    """The long run of the draft length of assisted generation; None where there is none, or none
    that is found in reasonable time."""
    from servespec.errors import ConfigError
    from servespec.theory.draft_length import long_run

    try:
        return long_run(alpha, cost)
    except ConfigError:
        return None


def _short(number: Fraction) -> str:
    """As a decimal if that is exact and short, else as a fraction."""
    return f"{float(number):g}" if Fraction(f"{float(number):g}") == number else str(number)
