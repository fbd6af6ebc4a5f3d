"""`servecheck fuzz`: random programs of actions, every property asked after each of them.

Theory of operation. The work is `servecheck.fuzz.campaign`; here its summary becomes lines, within
80 columns, or one JSON object. On a terminal a bar shows the time spent; in a pipe a line on
standard error does, every ten seconds. Ctrl-C ends the search, not the report.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

import typer

from servecheck.cli.options import Json
from servecheck.cli.terminal import Exit, Part, complain, say, say_json
from servecheck.cli.terminal import progress as bar

if TYPE_CHECKING:
    from collections.abc import Callable

    from servecheck.fuzz.campaign import Progress, Summary

EVERY = 10.0
"""Seconds from one line of progress to the next, in a pipe."""

WIDTH = 80
STYLES = {"holds": "bold green", "falls": "bold red", "undetermined": "bold yellow"}


def command(
    seconds: Annotated[float, typer.Option(min=0.0, help="How long to search.")] = 60.0,
    seed: Annotated[int, typer.Option(help="Where chance begins.")] = 0,
    profile: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="One policy, such as VLLM_0_33, instead of all kinds."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Moves in one run.")] = 40,
    as_json: Json = False,
) -> int:
    """Search for a program on which a property of the specification falls.

    Sizes, choices and actions are drawn, most of them such that something interesting happens.
    Every property is asked after each step; falls that the specification knows of are counted.
    Exit code 0: the time was spent and nothing else fell; 1: something did, and the smallest
    program found is shown; 3: the search was interrupted.
    """
    from servecheck.fuzz.campaign import Verdict, campaign

    with _showing(seconds) as show:
        found = campaign(seconds, seed, steps, profile, show)
    if as_json:
        say_json(_told(found))
    else:
        for line in lines(found):
            say(*line) if isinstance(line, tuple) else say(line)
    exits = {Verdict.HOLDS: Exit.HOLDS, Verdict.FALLS: Exit.FALLS}
    return exits.get(found.verdict, Exit.UNDETERMINED)


# --- progress ------------------------------------------------------------------------------


@contextmanager
def _showing(seconds: float) -> Iterator[Callable[[Progress], None]]:
    if sys.stderr is not None and sys.stderr.isatty():
        with bar("fuzzing", max(round(seconds), 1)) as update:
            yield lambda progress: update(min(int(progress.elapsed), round(seconds)))
        return
    told = 0.0

    def tell(progress: Progress) -> None:
        nonlocal told
        if progress.elapsed >= told + EVERY:
            told = progress.elapsed
            complain(
                f"{progress.elapsed:.0f} s of {progress.seconds:.0f}: {progress.runs:,} runs, "
                f"{progress.steps:,} steps, {progress.marks} marks"
                + (", shrinking" if progress.shrinking else "")
            )

    yield tell


# --- lines ---------------------------------------------------------------------------------

Line = str | tuple[Part, ...]


def lines(found: Summary) -> Iterator[Line]:
    """The report, a line at a time."""
    verdict = found.verdict.value
    yield (verdict, STYLES[verdict]), f": {_why(found)}"
    yield f"{found.budget}, {found.speed:,.0f} steps/s, seed {found.seed}"
    if found.fall is not None:
        yield ""
        for line in found.fall.lines:
            folded = wrap(line, WIDTH, subsequent_indent=" " * 10, drop_whitespace=False)
            yield from map(str.rstrip, folded)
    checked = {name: count for name, count in found.checked.items() if count}
    yield from _table("properties, how often their antecedent was true", checked)
    if found.vacuous:
        yield from _folded("never checked", found.vacuous)
    if found.known:
        yield from _table("falls that the specification knows of", found.known)
    yield from _table("moves", found.moves)
    reached = {mark.name.lower(): count for mark, count in found.marks.items()}
    total = len(reached) + len(found.missed)
    yield from _table(f"marks, {len(reached)} of {total} reached", reached)
    if found.missed:
        yield from _folded("not reached", [mark.name.lower() for mark in found.missed])
    if found.excluded:
        yield from _folded("not possible here", [mark.name.lower() for mark in found.excluded])


def _why(found: Summary) -> str:
    match found.verdict.value:
        case "holds":
            return f"nothing fell in {found.elapsed:.0f} s"
        case "falls" if found.fall is not None:
            return f"{found.fall.property_id}, after {len(found.fall.actions)} actions"
    ended = "interrupted" if found.interrupted else "ended"
    return f"{ended} after {found.elapsed:.1f} of {found.asked:g} s, and nothing fell"


def _table(title: str, counts: dict[str, int]) -> Iterator[str]:
    """Names with counts, the rarest first, in as many columns as fit."""
    yield ""
    yield title
    cells = [
        f"{_short(n):>5} {name}" for name, n in sorted(counts.items(), key=lambda c: (c[1], c[0]))
    ]
    widest = max((len(cell) for cell in cells), default=0) + 1
    columns = max((WIDTH + 1) // widest, 1)
    rows = -(-len(cells) // columns)
    for row in range(rows):
        yield "".join(f"{cell:<{widest}}" for cell in cells[row::rows]).rstrip()


def _short(count: int) -> str:
    """A number in at most five characters."""
    for unit in ("", "k", "M", "G"):
        if count < 10_000:
            return f"{count}{unit}"
        count = round(count / 1000)
    return f"{count}T"


def _folded(label: str, names: Iterable[str]) -> Iterator[str]:
    yield from wrap(f"{label}: {', '.join(names)}", WIDTH, subsequent_indent="  ")


# --- JSON ----------------------------------------------------------------------------------


def _told(found: Summary) -> dict[str, object]:
    from servecheck.fuzz.tell import tell_config, tell_policy, tell_program

    fall = found.fall
    return {
        "command": "fuzz",
        "verdict": found.verdict.value,
        "seed": found.seed,
        "seconds": {"asked": found.asked, "spent": round(found.elapsed, 3)},
        "interrupted": found.interrupted,
        "runs": found.runs,
        "steps": found.steps,
        "worlds": found.worlds,
        "moves": dict(sorted(found.moves.items())),
        "marks": {mark.name.lower(): count for mark, count in found.marks.items()},
        "marks_missed": [mark.name.lower() for mark in found.missed],
        "marks_not_possible": [mark.name.lower() for mark in found.excluded],
        "checked": dict(sorted(found.checked.items())),
        "never_checked": list(found.vacuous),
        "known_falls": dict(sorted(found.known.items())),
        "fall": None
        if fall is None
        else {
            "property": fall.property_id,
            "statement": fall.statement,
            "what": fall.what,
            "config": tell_config(fall.config),
            "policy": tell_policy(fall.policy),
            "program": list(tell_program(fall.actions)),
        },
    }
