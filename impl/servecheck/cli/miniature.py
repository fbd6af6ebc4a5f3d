"""`servecheck miniature`: the article's serving loop in miniature, out of the specification or out
of the fast engine."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from servecheck.cli.options import Json
from servecheck.cli.terminal import Exit, escaped, say, say_json


def command(
    engine: Annotated[
        Literal["spec", "fast"],
        typer.Option(help="Who serves: the specification, or the fast engine."),
    ] = "spec",
    as_json: Json = False,
) -> int:
    """Print the lines of the article's serving loop in miniature.

    "Serving Language Models from Scratch" ends with a program that prints five lines about a
    block pool, batching, memory and speculative decoding. Here the specification gives them, or
    the fast engine does. What that program asserts is asserted; if something does not hold, the
    exit code is 1.
    """
    from attrs import asdict

    from servecheck.engines.whole import WHOLE
    from servecheck.miniature import MiniatureError, miniature

    try:
        results = miniature(WHOLE[engine])
    except MiniatureError as error:
        if as_json:
            what = {"verdict": "falls", "what": str(error)}
            say_json({"command": "miniature", "engine": engine, **what})
        else:
            say("does not hold: ", escaped(str(error)))
        return Exit.FALLS
    if as_json:
        shown = [{"line": result.line(), **asdict(result)} for result in results]
        held = {"verdict": "holds", "results": shown}
        say_json({"command": "miniature", "engine": engine, **held})
    else:
        for result in results:
            say(result.line())
    return Exit.HOLDS
