"""What `servecheck replay TRACE` does: the specification along a trace, line by line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from servecheck.cli.terminal import Exit, escaped, say, say_json, width

if TYPE_CHECKING:
    from servecheck.trace.replay import TraceReport


def replay(traces: list[Path], as_json: bool) -> int:
    """Replay traces; FALLS if one differs, or its verdict does not come out again."""
    from servecheck.lockstep.report import LOCKSTEP
    from servecheck.trace.read import read_trace
    from servecheck.trace.replay import replay_trace

    told, good = [], True
    for place in traces:
        trace = read_trace(place)
        report = replay_trace(trace)
        good &= report.agrees and report.reproduced is not False
        told.append(_told(place, report))
        if not as_json:
            _say(place, report)
            if trace.verdict is not None and trace.verdict.property == LOCKSTEP:
                say("  this is the specification alone; what the engine did shows")
                say(f"  `servecheck fuzz --engine … --program {escaped(str(place))}`")
    if as_json:
        say_json({"verdict": "holds" if good else "falls", "traces": told})
    return Exit.HOLDS if good else Exit.FALLS


def _told(place: Path, report: TraceReport) -> dict[str, object]:
    fallen = {f.fallen.property.id: {"action": f.n, "what": f.fallen.what} for f in report.fallen}
    return {
        "trace": str(place),
        "actions": report.actions,
        "agreed": report.agreed,
        "fallen": fallen,
        "recorded": None if report.recorded is None else report.recorded.property,
        "reproduced": report.reproduced,
        "differences": [
            {"line": d.line, "action": d.n, "field": d.field} for d in report.differences
        ],
    }


def _say(place: Path, report: TraceReport) -> None:
    from servecheck.cli.differences import parts

    say(escaped(str(place)), f": {report.agreed} of {report.actions} actions agree")
    seen = set()
    for f in report.fallen:
        if f.fallen.property.id not in seen:
            seen.add(f.fallen.property.id)
            known = ", as the registry knows" if f.fallen.known else ""
            say(f"  {f.fallen.property.id} falls at action {f.n}{known}: ", escaped(f.fallen.what))
    if report.recorded is not None and report.reproduced is not None:
        again = "comes out again" if report.reproduced else "does not come out again"
        name = f" {report.recorded.property}" if report.recorded.property else ""
        say(f"  the recorded verdict, {report.recorded.verdict}{name}, {again}")
    for d in report.differences:
        say(f"  line {d.line}, action {d.n}, ", escaped(d.field))
        for part in parts(d.field, d.recorded, d.specified, max(width() - 18, 20)):
            say("    recorded   ", escaped(part.recorded))
            say("    specified  ", escaped(part.specified))
