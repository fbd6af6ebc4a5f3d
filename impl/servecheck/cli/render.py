"""`servecheck render`: a moment of a trace or a recording as a picture or a graph.

The output is told by its ending: .svg and .png are pictures, .graphml and .dot are graphs for other
programs. Which moment there is to see is the business of `servecheck.view.moment`.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from servecheck.cli.options import Json
from servecheck.cli.terminal import BadInput, Exit, escaped, say, say_json

if TYPE_CHECKING:
    from servecheck.view.moment import Moment

KINDS = ("request", "left", "block", "holds", "parent", "next free")
"""Of nodes, then of edges."""


def command(
    trace: Annotated[
        Path | None, typer.Argument(metavar="TRACE", help="A trace: one JSON object a line.")
    ] = None,
    recording: Annotated[
        Path | None,
        typer.Option(
            metavar="PREFIX",
            help="Instead of a trace: a recording, such as traces/vllm-0.33.0/toy_reset.",
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="In a trace the number of an action, from 0; in a recording that of a step. "
            "The last one, if none is given.",
        ),
    ] = None,
    at: Annotated[
        Literal["scheduled", "updated"],
        typer.Option(help="Of a recording: after the pass of the step, or after its outcome."),
    ] = "scheduled",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="An .svg, .png, .graphml or .dot; NAME-N.svg in this folder, if none is given.",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Draw one moment: which request holds which blocks, what is shared, cached, evicted next.

    Outlined is what changed since the moment before. A .png needs matplotlib.
    """
    from servecheck.trace.model import TraceError
    from servecheck.view.errors import ViewError
    from servecheck.view.graph import graph_of
    from servecheck.view.scene import scene_of
    from servecheck.view.write import write, writer_for

    if (trace is None) == (recording is None):
        raise BadInput("give a TRACE, or --recording PREFIX, and not both")
    if output is not None and output.is_dir():
        raise BadInput(f"{output}: is a folder; name a file in it")
    try:
        if output is not None:
            writer_for(output)
        moment = _moment(trace, recording, step, at)
        place = output or Path(_file_name(moment))
        scene = scene_of(moment)
        write(scene, place)
    except (ViewError, TraceError) as error:
        raise BadInput(str(error)) from None
    graph = graph_of(scene)
    kinds = Counter(about["kind"] for _, about in graph.nodes(data=True))
    kinds.update(about["kind"] for _, _, about in graph.edges(data=True))
    nodes, edges = graph.number_of_nodes(), graph.number_of_edges()
    if as_json:
        say_json(
            {
                "command": "render",
                "output": str(place),
                "name": moment.name,
                "place": moment.place,
                "doubt": moment.doubt or None,
                "nodes": nodes,
                "edges": edges,
                "kinds": {kind: kinds[kind] for kind in KINDS},
            }
        )
    else:
        say(
            f"{escaped(str(place))}: {escaped(moment.name)}, {moment.place}; "
            f"requests: {kinds['request']}, blocks: {kinds['block']}, edges: {edges}"
        )
        if moment.doubt:
            say("  ", ("warning", "yellow"), f": {moment.doubt}")
    return Exit.HOLDS


def _moment(
    trace: Path | None,
    recording: Path | None,
    step: int | None,
    at: Literal["scheduled", "updated"],
) -> Moment:
    from servecheck.recording import read_recording
    from servecheck.trace.read import read_trace
    from servecheck.view.moment import moment_of_recording, moment_of_trace

    if trace is not None:
        return moment_of_trace(read_trace(trace), step)
    assert recording is not None
    return moment_of_recording(read_recording(recording), step, at)


def _file_name(moment: Moment) -> str:
    """NAME-N.svg; a second moment of the same step has another name."""
    name = re.sub(r"[^\w.-]+", "_", moment.name).lstrip(".-")[:80] or "state"
    late = "-updated" if moment.place.endswith("updated") else ""
    number = re.search(r"\d+", moment.place)
    return f"{name}-{number[0] if number else 0}{late}.svg"
