"""A campaign told: lines within 80 columns, or one JSON object.

Theory of operation. Whatever searched (`servecheck.fuzz.campaign`, `servecheck.fuzz.long`) gives
one kind of summary. The verdict comes first, in one clause; then what was spent; then what speaks
for it; then what was reached and asked, the rarest first, and what was not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import wrap
from typing import TYPE_CHECKING

from servecheck.cli.terminal import Part, brief, escaped

if TYPE_CHECKING:
    from servecheck.fuzz.summary import Retried, Seen, Summary, Taught
    from servecheck.marks import Mark

WIDTH = 80
STYLES = {
    "holds": "bold green",
    "falls": "bold red",
    "diverges": "bold red",
    "stale": "bold red",
}
UNSURE = "bold yellow"

Line = str | tuple[Part, ...]


def lines(found: Summary) -> Iterator[Line]:
    """The report, a line at a time."""
    verdict = found.verdict.value
    yield (verdict, STYLES.get(verdict, UNSURE)), f": {why(found)}"
    yield f"{found.budget}, {found.speed:,.0f} steps/s, seed {found.seed}"
    if found.seen is not None:
        yield from wrap(engine_line(found.seen), WIDTH, subsequent_indent="  ")
    if found.retried is not None:
        yield from _retried(found.retried)
    if found.taught is not None:
        yield from _taught(found.taught)
    yield from evidence(found)
    checked = {name: count for name, count in found.checked.items() if count}
    if checked:
        yield from _table("properties, how often their antecedent was true", checked)
    if found.vacuous:
        yield from _folded("never checked", found.vacuous)
    if found.unasked:
        yield from _folded("not asked", found.unasked)
    if found.seen is not None and found.seen.known:
        yield from _table("known deviations of the engine", found.seen.known)
        yield from _table("state adopted after them, followed on", found.seen.adopted)
        if found.seen.let_go:
            yield from _table("let go after them, undetermined from there", found.seen.let_go)
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


def _retried(found: Retried) -> Iterator[str]:
    """What came of programs that once fell."""
    if found.tried or found.left:
        programs = f"{found.tried:,} program{'' if found.tried == 1 else 's'} that once fell"
        came = "none falls" if found.fell is None else "and one falls"
        unfit = f", {found.unfit:,} not for this engine" if found.unfit else ""
        left = f", {found.left:,} not tried" if found.left else ""
        yield f"tried first: {programs}, {came}{unfit}{left}"
    yield from _passed_over(found.useless)


def _taught(found: Taught) -> Iterator[str]:
    """What came of a corpus."""
    yield (
        f"corpus: {found.read:,} starts read, {found.fit:,} fit, {found.added:,} added, "
        f"{found.removed:,} removed"
    )
    yield from _passed_over(found.useless)


def _passed_over(useless: Iterable[str]) -> Iterator[str]:
    for what in useless:
        yield from wrap(f"passed over: {brief(what)}", WIDTH, subsequent_indent="  ")


def evidence(found: Summary) -> Iterator[str]:
    """What speaks for a verdict other than that it holds: notes, the report, where it is written.
    Names in a program come from whoever wrote it."""
    told = found.notes
    if found.report is not None:
        told += found.report.lines
    elif found.fall is not None:
        told += found.fall.lines
    if told:
        yield ""
    for line in told:
        if line.startswith("replay "):
            yield escaped(line)  # whole, to be copied
            continue
        folded = wrap(
            brief(line),
            WIDTH,
            subsequent_indent=" " * 11,
            drop_whitespace=False,
            # A link is not to be cut at its hyphens.
            break_on_hyphens=not line.startswith("similar "),
        )
        yield from map(str.rstrip, folded)
    if found.trace is not None:
        yield f"written    {escaped(str(found.trace))}"


def why(found: Summary) -> str:
    """The verdict in one clause."""
    match found.verdict.value:
        case "holds":
            what = "nothing diverged" if found.lockstep_only else "nothing fell"
            if found.asked_steps is None:
                return f"{what} in {found.elapsed:.0f} s"
            return f"{what} in {found.steps:,} steps"
        case "falls" if found.fall is not None:
            return f"{found.fall.property_id}, after {len(found.fall.actions)} actions"
        case "diverges" if found.fall is not None and found.seen is not None:
            name = escaped(f"{found.seen.engine.name} {found.seen.engine.version}")
            return f"{name}, after {len(found.fall.actions)} actions"
        case "stale":
            return "the register of known deviations is out of date"
        case "nondeterministic":
            return "the engine does not do the same twice"
        case "undetermined" if found.interrupted and not found.notes:
            pass
        case "undetermined" if found.fall is not None:
            return "the engine diverged, and could not be run again"
        case "undetermined" if found.unable is not None:
            return found.unable
        case "undetermined" if found.seen is not None and found.seen.let_go:
            return "nothing else fell, and the engine was let go at a known deviation"
        case "undetermined" if found.notes:
            return "the engine is gone, and had not diverged"
        case "undetermined" if found.runs and found.said_nothing and not found.interrupted:
            return f"no property that was asked had anything to say, in {found.steps:,} steps"
    ended = "interrupted" if found.interrupted else "ended"
    if found.asked is None:
        return f"{ended} after {found.steps:,} of {found.asked_steps:,} steps, and nothing fell"
    return f"{ended} after {found.elapsed:.1f} of {found.asked:g} s, and nothing fell"


def engine_line(seen: Seen) -> str:
    """One line on the engine."""
    said = seen.engine
    refused = f", {seen.refused:,} worlds refused" if seen.refused else ""
    return escaped(
        f"engine {said.name} {said.version}, level {said.level.name.lower()}: "
        f"{seen.followed:,} actions in lockstep, {seen.compared:,} fields compared, "
        f"not seen: {', '.join(sorted(seen.unseen)) or 'nothing'}{refused}"
    )


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


def engine_told(seen: Seen) -> dict[str, object]:
    """What --json says of the engine."""
    return {
        "name": seen.engine.name,
        "version": seen.engine.version,
        "level": seen.engine.level.name.lower(),
        "actions": seen.followed,
        "fields": seen.compared,
        "not_seen": dict(sorted(seen.unseen.items())),
        "worlds_refused": seen.refused,
        "known_deviations": dict(sorted(seen.known.items())),
        "adopted": dict(sorted(seen.adopted.items())),
        "let_go": dict(sorted(seen.let_go.items())),
    }


def _retried_told(found: Retried) -> dict[str, object]:
    return {
        "tried": found.tried,
        "fell": None if found.fell is None else str(found.fell),
        "unfit": found.unfit,
        "useless": list(found.useless),
        "left": found.left,
    }


def _taught_told(found: Taught) -> dict[str, object]:
    return {
        "read": found.read,
        "fit": found.fit,
        "added": found.added,
        "removed": found.removed,
        "useless": list(found.useless),
    }


def _named(counted: tuple[Mark, int]) -> str:
    return counted[0].name


def told(found: Summary) -> dict[str, object]:
    """All of it as JSON, of a seed and steps the same to the letter but for the seconds."""
    from servecheck.tell import tell_config, tell_policy, tell_program

    fall, seen = found.fall, found.seen
    return {
        "command": "fuzz",
        "verdict": found.verdict.value,
        "seed": found.seed,
        "seconds": {"asked": found.asked, "spent": round(found.elapsed, 3)},
        "steps_asked": found.asked_steps,
        "interrupted": found.interrupted,
        "runs": found.runs,
        "steps": found.steps,
        "worlds": found.worlds,
        "more_worlds": found.more_worlds,
        "moves": dict(sorted(found.moves.items())),
        "marks": {mark.name.lower(): n for mark, n in sorted(found.marks.items(), key=_named)},
        "marks_missed": [mark.name.lower() for mark in found.missed],
        "marks_not_possible": [mark.name.lower() for mark in found.excluded],
        "checked": dict(sorted(found.checked.items())),
        "never_checked": list(found.vacuous),
        "not_asked": list(found.unasked),
        "known_falls": dict(sorted(found.known.items())),
        "notes": list(found.notes),
        "engine": None if seen is None else engine_told(seen),
        "unable": found.unable,
        "corpus": None if found.taught is None else _taught_told(found.taught),
        "retried": None if found.retried is None else _retried_told(found.retried),
        "report": None if found.report is None else list(found.report.lines),
        "similar": []
        if found.report is None
        else [{"id": r.id, "url": r.url, "summary": r.summary} for r in found.report.similar],
        "trace": None if found.trace is None else str(found.trace),
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
