"""`servecheck demo`: a fault is planted in an engine, found, shrunk to a few lines, and drawn.

The fault is one that real engines have shipped: a cached block that is hit keeps its place in the
free queue, so it is handed out again while somebody reads it. The engine is the fast engine, wrong
in that one place; nothing else of the demonstration knows where.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from servecheck.cli.options import Json
from servecheck.cli.terminal import BadInput, Exit, escaped, say, say_json

if TYPE_CHECKING:
    from servecheck.engines.protocol import StateEngine
    from servespec.config import Config
    from servespec.policy import Policy

SECONDS = 20.0
"""At most; the fault is found within one."""

AGAIN = "servecheck fuzz --engine servecheck.cli.demo:broken"


def command(
    folder: Annotated[Path, typer.Option(help="Where the trace and picture go.")] = Path(),
    seed: Annotated[int, typer.Option(help="Where chance begins.")] = 0,
    as_json: Json = False,
) -> int:
    """Plant a fault in an engine; find it, shrink it, draw it.

    Exit code 0: it was found; 3: it was not.
    """
    from servecheck.fuzz.campaign import campaign
    from servecheck.trace.read import read_trace
    from servecheck.view.moment import moment_of_trace
    from servecheck.view.scene import scene_of
    from servecheck.view.write import write

    if not as_json:
        say("Planted: a block that is hit stays in the free queue. Searching ...")
    found = campaign(
        SECONDS, seed, profile="VLLM_0_33", following=broken, failures=folder, again=AGAIN
    )
    if found.report is not None and found.trace is None:
        raise BadInput(escaped("; ".join(found.notes)))
    if found.report is None or found.trace is None:
        if as_json:
            say_json({"found_after_steps": None})
        else:
            say(f"not found in {found.budget}")
        return Exit.INTERRUPTED if found.interrupted else Exit.UNDETERMINED
    picture = folder / f"{found.trace.stem}.svg"
    write(scene_of(moment_of_trace(read_trace(found.trace))), picture)
    if as_json:
        say_json(
            {
                "found_after_steps": found.steps,
                "actions": len(found.report.actions),
                "report": list(found.report.lines),
                "trace": str(found.trace),
                "picture": str(picture),
            }
        )
        return Exit.HOLDS
    say(f"Found within {found.runs} runs, and shrunk:")
    for line in found.report.lines:
        say("  ", escaped(line))
    say("trace:   ", escaped(str(found.trace)))
    say("picture: ", escaped(str(picture)), ", what the specification holds at that moment")
    return Exit.HOLDS


def broken(config: Config, policy: Policy) -> StateEngine:
    """The fast engine with the planted fault."""
    from servecheck.engines.fast.adapters import FastLoop
    from servecheck.engines.fast.pool import FastPool

    class HitStaysFree(FastPool):
        def acquire(self, hits: Sequence[int]) -> None:
            for block in hits:
                self.ref[block] += 1

    loop = FastLoop(config, policy)
    loop.engine.pool = HitStaysFree(config, policy, loop.engine.log)
    return loop
