"""`servecheck miniature`: the article's serving loop in miniature, out of the specification."""

from __future__ import annotations

from servecheck.cli.options import Json
from servecheck.cli.terminal import Exit, escaped, say, say_json


def command(as_json: Json = False) -> int:
    """Print the lines of the article's serving loop in miniature.

    "Serving Language Models from Scratch" ends with a program that prints five lines about a
    block pool, batching, memory and speculative decoding. Here the specification gives them. What
    that program asserts is asserted; if something does not hold, the exit code is 1.
    """
    from attrs import asdict

    from servecheck.miniature import MiniatureError, miniature

    try:
        results = miniature()
    except MiniatureError as error:
        if as_json:
            say_json({"command": "miniature", "verdict": "falls", "what": str(error)})
        else:
            say("does not hold: ", escaped(str(error)))
        return Exit.FALLS
    if as_json:
        shown = [{"line": result.line(), **asdict(result)} for result in results]
        say_json({"command": "miniature", "verdict": "holds", "results": shown})
    else:
        for result in results:
            say(result.line())
    return Exit.HOLDS
