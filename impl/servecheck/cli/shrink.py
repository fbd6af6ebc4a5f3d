"""`servecheck shrink`: the smallest program on which a recorded property still falls.

What is kept is the fall, not the trace: actions are dropped, prompts shortened, what follows is
mended so that every step stays legal. The result is a trace of its own, which replays and draws.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from servecheck.cli.options import Json
from servecheck.cli.terminal import BadInput, Exit, escaped, say, say_json


def command(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace on which one falls.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="NAME.small.jsonl here, if none."),
    ] = None,
    property_id: Annotated[
        str | None,
        typer.Option("--property", metavar="ID", help="Which one; the recorded one, if none."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Shrink a trace on which a property of the specification falls.

    Exit code 0: the smaller trace is written; 2: nothing falls on this trace.
    """
    from servecheck.lockstep.report import LOCKSTEP
    from servecheck.tell import tell_program
    from servecheck.trace.lasso import WATCHED
    from servecheck.trace.model import Verdict
    from servecheck.trace.read import read_trace
    from servecheck.trace.replay import replay_trace
    from servecheck.trace.shrink import fall_in, falls, shrink
    from servecheck.trace.write import record

    read = read_trace(trace)
    actions = tuple(line.action for line in read.lines)
    wanted = property_id or (read.verdict.property if read.verdict is not None else None)
    if wanted is None:
        fallen = replay_trace(read).fallen
        wanted = fallen[0].fallen.property.id if fallen else None
    if wanted is None:
        raise BadInput(f"{trace}: no property falls on this trace; there is nothing to shrink")
    if wanted == LOCKSTEP:
        raise BadInput(
            f"{trace}: it is an engine that fell, and the search has shrunk it; run it by "
            f"`servecheck fuzz --engine … --program {trace}`"
        )
    if wanted not in WATCHED:
        raise BadInput(f"there is no property {wanted!r}; spec/README.md lists them")
    if fall_in(read.machine, wanted, actions) is None:
        raise BadInput(f"{trace}: {wanted} does not fall on this trace")
    small = shrink(read.machine, actions, falls(read.machine, wanted))
    what = fall_in(read.machine, wanted, small) or ""
    place = output or Path(f"{trace.name.removesuffix('.jsonl')}.small.jsonl")
    record(place, read.machine, small, Verdict("falls", wanted, what), seed=read.header.seed)
    if as_json:
        say_json(
            {
                "trace": str(place),
                "property": wanted,
                "what": what,
                "actions": len(small),
                "of": len(actions),
                "program": list(tell_program(small)),
            }
        )
        return Exit.HOLDS
    say(f"{wanted} falls on {len(small)} actions of {len(actions)}: ", escaped(what))
    for line in tell_program(small):
        say("  ", escaped(line))
    say("written: ", escaped(str(place)))
    return Exit.HOLDS
