"""What became of mutants, one JSON line each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from attrs import asdict, frozen

from tests.mutation.names import Name

KILLED, TIMEOUT, SURVIVED, TEXT = "killed", "timeout", "survived", "text"


@frozen
class Row:
    """A mutant that was run, or one of text alone that was not."""

    name: Name
    verdict: str
    by: str
    """The test that noticed it."""
    seconds: float

    def line(self) -> str:
        return json.dumps(asdict(self))


def read_rows(file: Path) -> Iterator[Row]:
    """The rows of a file; the last line may be half written, where a run was stopped."""
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        yield Row(Name(**row["name"]), row["verdict"], row["by"], row["seconds"])
