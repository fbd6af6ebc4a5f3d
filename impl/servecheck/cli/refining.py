"""`servecheck check --engine`: every transition of a scope, with an engine beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from servecheck.cli.terminal import BadInput, Exit, brief, escaped, say, say_json

if TYPE_CHECKING:
    from servecheck.explore.refining import Refined
    from servecheck.explore.scopes import Scope, ServingScope
    from servecheck.explore.search import Limits, Progress
    from servecheck.lockstep.subject import Subject

Reporter = Callable[[str], "Callable[[Progress], None]"]
SIGNS = {True: "=", False: "!", None: "?"}
VERDICTS = {True: "refines", False: "diverges", None: "undetermined"}


def refine(
    chosen: Sequence[Scope],
    subject: Subject,
    limits: Limits,
    reporter: Reporter,
    failures: Path,
    as_json: bool,
) -> Exit:
    """Do every transition of these scopes with an engine beside it; the first divergence ends it.

    Raises:
        BadInput: none of them is a scope of the serving machine.
    """
    from servecheck.explore.refining import refined
    from servecheck.explore.scopes import ServingScope

    scopes = [scope for scope in chosen if isinstance(scope, ServingScope)]
    if not scopes:
        raise BadInput("--engine needs a scope of the serving machine, such as serving-tiny/chunks")
    rows: list[tuple[ServingScope, Refined]] = []
    told: list[str] = []
    for scope in scopes:
        rows.append(
            (scope, refined(scope.system, subject, limits=limits, report=reporter(scope.name)))
        )
        found = rows[-1][1]
        if not as_json:
            say(_line(scope, found))
        if found.parted is not None:
            told = _tell(found, failures)
            break
        if found.ended.value == "interrupted":
            break
    if as_json:
        say_json(_json(rows, told))
        return _exit(rows)
    for line in told:
        say(line if line.startswith("replay ") else brief(line))
    if len(rows) > 1:
        whole = [found for _, found in rows if found.holds]
        done = sum(found.transitions for _, found in rows)
        say(f"{len(whole)} of {len(rows)} scopes refined, {done:,} transitions compared")
    return _exit(rows)


def _whole(rows: Sequence[tuple[ServingScope, Refined]]) -> bool | None:
    """The worst answer: that it does not refine, then that it is not known."""
    answers = {found.holds for _, found in rows}
    return False if False in answers else None if None in answers else True


def _exit(rows: Sequence[tuple[ServingScope, Refined]]) -> Exit:
    holds = _whole(rows)
    if holds is False:
        return Exit.FALLS
    if any(found.ended.value == "interrupted" for _, found in rows):
        return Exit.INTERRUPTED
    return Exit.UNDETERMINED if holds is None else Exit.HOLDS


def _line(scope: ServingScope, found: Refined) -> str:
    why = "" if found.why is None else f": {escaped(found.why)}"
    unable = "".join(f", {n:,} {kind} not done" for kind, n in sorted(found.unable.items()))
    return (
        f"{SIGNS[found.holds]} {scope.name:<28} {found.states:>8,} states "
        f"{found.transitions:>10,} transitions compared  {found.seconds:6.1f} s  "
        f"{VERDICTS[found.holds]}{unable}{why}"
    )


def _tell(found: Refined, failures: Path) -> list[str]:
    """The report of a divergence, whose program is kept."""
    from servecheck.lockstep.report import LOCKSTEP, of_divergence
    from servecheck.trace.model import TraceError, Verdict
    from servecheck.trace.write import keep

    parted, engine = found.parted, found.engine
    if parted is None or engine is None:
        return []
    name = "".join(c if c.isalnum() or c in "-._" else "-" for c in engine.name[:40])
    what = Verdict("falls", LOCKSTEP, parted.divergence.differences[0].field)
    try:
        trace = keep(failures, f"{LOCKSTEP}-{name}", parted.machine, parted.actions, what)
        kept = f"written    {escaped(str(trace))}"
    except TraceError as error:  # no reason to lose what was found
        kept = f"the trace is not written: {escaped(str(error))}"
    verdict = "nondeterministic" if found.nondeterministic else "diverges"
    return [*of_divergence(parted, engine, verdict).lines, kept]


def _json(rows: Sequence[tuple[ServingScope, Refined]], told: list[str]) -> dict[str, object]:
    return {
        "command": "check",
        "verdict": VERDICTS[_whole(rows)],
        "states": sum(found.states for _, found in rows),
        "transitions": sum(found.transitions for _, found in rows),
        "seconds": round(sum(found.seconds for _, found in rows), 3),
        "scopes": list(_scopes(rows)),
        "report": told,
    }


def _scopes(rows: Sequence[tuple[ServingScope, Refined]]) -> Iterator[dict[str, object]]:
    for scope, found in rows:
        yield {
            "scope": scope.name,
            "verdict": VERDICTS[found.holds],
            "states": found.states,
            "transitions": found.transitions,
            "refusals": found.refusals,
            "depth": found.depth,
            "ended": found.ended.value,
            "seconds": round(found.seconds, 3),
            "unable": dict(sorted(found.unable.items())),
            "known": dict(sorted(found.known.items())),
            "why": found.why,
        }
