"""Options that every command has, each spelt once."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")]
