"""The trade of chunked prefill, over token budgets: as a table, JSON and a chart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from servecheck.cli.figures import Asked, about, title
from servecheck.cli.terminal import Exit, escaped, say, say_json

if TYPE_CHECKING:
    from servespec.theory.chunking import Trade
    from servespec.theory.memory import Deployment


def trade(
    d: Deployment, asked: Asked, budgets: tuple[int, ...], plot: Path | None, as_json: bool
) -> int:
    from servecheck.view.charts import write_trade
    from servespec.theory.chunking import exceptions, trades
    from servespec.theory.roofline import decodes, milliseconds, step_time

    rows = list(trades(d, asked.batch, asked.context, asked.prompt, budgets))
    shorter, later = exceptions(rows)
    plain = milliseconds(step_time(d, decodes(asked.batch, asked.context)))
    story = f"a prompt of {asked.prompt:,} among {asked.batch:,} users at {asked.context:,}"
    if plot is not None:
        write_trade(d, rows, plain, story, plot)
    if as_json:
        told = {
            "command": "arithmetic",
            **about(d),
            "batch": asked.batch,
            "context": asked.context,
            "prompt": asked.prompt,
            "users_alone_ms": plain,
            "budgets": [_told(row) for row in rows],
            "larger_budget_shorter_pause": shorter,
            "larger_budget_later_first_token": later,
            "plot": None if plot is None else str(plot),
        }
        say_json(told)
        return Exit.HOLDS
    say(f"{title(d)}: {story}; a step of theirs alone {plain:.2f} ms")
    say(f"{'budget':>8}{'chunks':>8}{'longest pause, ms':>20}{'first token, ms':>18}")
    for row in rows:
        pause, first = (
            none if time is None else f"{milliseconds(time):.2f}"
            for time, none in ((row.pause, "no end"), (row.first_token, "never"))
        )
        say(f"{row.budget:>8,}{len(row.chunks):>8,}{pause:>20}{first:>18}")
    for what, found in (("a shorter pause", shorter), ("a later first token", later)):
        pairs = ", ".join(f"{small:,} → {large:,}" for small, large in found)
        say(f"a larger budget with {what}: {pairs or 'none here'}")
    if plot is not None:
        say("picture: ", escaped(str(plot)))
    return Exit.HOLDS


def _told(row: Trade) -> dict[str, object]:
    from servespec.theory.roofline import milliseconds

    pause, first = row.pause, row.first_token
    return {
        "budget": row.budget,
        "chunks": row.chunks,
        "pause_ms": None if pause is None else milliseconds(pause),
        "first_token_ms": None if first is None else milliseconds(first),
        "users_left_out": row.left_out,
        "steps_bound_by_memory": row.bound_by_memory,
    }
