"""Options that several commands have, each spelt once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")]
"""Every command has it."""

Engine = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Check this: fast, vllm, zoo:ENTRY, or module:factory."),
]
Command = Annotated[
    str | None,
    typer.Option("--command", metavar="COMMAND", help="Check a process of spec/PROTOCOL.md."),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="How long a process may take for an answer; 10 if not said, 60 for its start. "
        "Never much longer than --seconds leaves.",
    ),
]
Level = Annotated[
    str | None,
    typer.Option(metavar="LEVEL", help="Compare at pool, steps or state."),
]
MOST_JOBS = 256
"""Processes that are never too few: each takes 60 MB or more."""

Deviations = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Known deviations, instead of those that come along."),
]
"""Which engine is to be checked: `servecheck.cli.engines`."""
