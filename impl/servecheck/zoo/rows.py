"""Rows of the kill matrix, and the file that a run is resumed from.

Theory of operation. A row is what came of an entry with a seed. A file has a line of JSON for each,
appended as it comes, whole or not at all, under a lock: runs may share a file. A run that is killed
can leave a part of a line at the end; it is passed over, and cut off before the next row is
written. What does not begin as a row does is no part of one: a file of something else is refused
and left as it is. Rows of another seed, budget, change or strategy are left in the file and not
counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from fcntl import LOCK_EX, flock
from io import FileIO
from os import SEEK_END
from pathlib import Path

from attrs import asdict, fields, frozen

from servecheck.strict import FileError, Refused, parse, wrong
from servecheck.trace.codec import decode

KILLED, MISSED, INDISTINGUISHABLE = "killed", "missed", "indistinguishable"
VERDICTS = (KILLED, MISSED, INDISTINGUISHABLE)


class ResultsError(FileError):
    """A file of rows that cannot be read or written."""


@frozen
class Kill:
    """The first failure that a check has seen, before anything is made smaller."""

    by: str
    """A field, a property, or a recording."""
    what: str
    steps: int
    """Actions tried up to it, over all examples."""
    examples: int
    """Runs begun."""
    cpu: float
    """Seconds, measured."""


@frozen
class Row:
    """What came of an entry with a seed."""

    entry: str
    change: str
    """Digest of the entry's classes;"""
    strategies: str
    """and of the modules that decide what is tried. A row with others is of another run."""
    seed: int
    actions: int
    """Budget."""
    verdict: str
    """killed, missed or indistinguishable"""
    why: str
    """Where it was not killed."""
    spec: Kill | None
    properties: Kill | None
    """By the property that fell first."""
    golden: Kill | None
    program: int | None
    """Actions of the smallest program found; written by hand if comparison found none."""
    depth: int | None
    """Actions of the shortest program in its world, if the search came to it."""
    states: int
    """Of the search."""
    expected: Kill | None = None
    """By the property that must fall, no other being asked."""
    chance_only: bool | None = None
    """Only what depends on the seed was tried: no recordings, no property alone."""

    @property
    def shortest(self) -> int | None:
        """Actions of the shortest program that is known."""
        return self.program if self.depth is None else self.depth

    @property
    def first(self) -> Kill | None:
        """That of the comparison, or of the properties where comparison found none."""
        return self.spec or self.properties


BEGINS = json.dumps({fields(Row).entry.name: ""}).encode().removesuffix(b'"}')
"""What every line begins with."""

Pair = tuple[str, int]
"""An entry and a seed."""


def latest(rows: Iterable[Row]) -> dict[Pair, Row]:
    """Of several rows of a pair the last; but one that was tried at length stays, where the other
    is of the same run but for that."""
    found: dict[Pair, Row] = {}
    for row in rows:
        old = found.get((row.entry, row.seed))
        if old is None or not row.chance_only or old.chance_only or _kind(old) != _kind(row):
            found[row.entry, row.seed] = row
    return found


def _kind(row: Row) -> tuple[str, str, int]:
    return row.change, row.strategies, row.actions


# --- the file ------------------------------------------------------------------------------------


def read_rows(results: Path) -> Iterator[Row]:
    """The rows of a file, without a part of one at its end.

    Raises:
        ResultsError: it cannot be read, or a line is no row.
    """
    try:
        if results.exists() and not results.is_file():
            raise ResultsError(results, None, None, "is no file", "name another")
        *lines, rest = results.read_bytes().split(b"\n")
    except OSError as error:
        raise ResultsError(
            results, None, None, f"cannot be read ({error})", "name another"
        ) from None
    for number, line in enumerate(lines, 1):
        try:
            yield _row(line)
        except Refused as error:
            what = f"this is no row: {error.what}"
            todo = "take the line out, or name another file"
            raise ResultsError(results, number, error.where, what, todo) from None
    if _whole(results, len(lines) + 1, rest):
        yield _row(rest)


def append(results: Path, row: Row) -> None:
    """One row more.

    Raises:
        ResultsError: it cannot be written, or ends with what is no row; it is as it was.
    """
    line = json.dumps(asdict(row), allow_nan=False).encode() + b"\n"
    try:
        results.parent.mkdir(parents=True, exist_ok=True)
        with FileIO(results, "a+") as file:
            flock(file, LOCK_EX)
            end = _mend(results, file)
            try:
                left = line
                while left:  # a disk that is full takes a part, and says so at the next try
                    left = left[file.write(left) :]
            except OSError:
                file.truncate(end)
                raise
    except OSError as error:
        why = f"cannot be written ({error.strerror or error})"
        todo = "free some space there, or name another file; the rows in it are kept"
        raise ResultsError(results, None, None, why, todo) from None


def ready(results: Path) -> None:
    """See that rows can be kept, before there are any: a row takes minutes.

    Raises:
        ResultsError: they cannot; the file is as it was.
    """
    try:
        if results.exists() and not results.is_file():
            raise ResultsError(results, None, None, "is no file", "name another")
        results.parent.mkdir(parents=True, exist_ok=True)
        FileIO(results, "a").close()
    except OSError as error:
        why = f"cannot be written ({error.strerror or error})"
        raise ResultsError(results, None, None, why, "name another file") from None


def _row(line: bytes) -> Row:
    """The row in a line.

    Raises:
        Refused: there is none.
    """
    row = decode(Row, parse(line))
    if row.verdict not in VERDICTS:
        raise wrong(f"one of {', '.join(VERDICTS)}", row.verdict).under("verdict")
    counts: dict[str, float | None] = {
        name: getattr(row, name) for name in ("actions", "program", "depth", "states")
    }
    for name in ("spec", "properties", "golden", "expected"):
        kill: Kill | None = getattr(row, name)
        if kill is not None:
            counts |= {f"{name}.steps": kill.steps, f"{name}.examples": kill.examples}
            counts |= {f"{name}.cpu": kill.cpu}
    for name, count in counts.items():
        if count is not None and count < 0:
            raise Refused(f"expected 0 or more, found {count} in {name}")
    return row


def _mend(results: Path, file: FileIO) -> int:
    """Let a file end with a whole line; how long it is then."""
    end = file.seek(0, SEEK_END)
    file.seek(0)
    *lines, rest = file.readall().split(b"\n")
    if _whole(results, len(lines) + 1, rest):
        file.write(b"\n")
        return end + 1
    file.truncate(end - len(rest))
    return end - len(rest)


def _whole(results: Path, number: int, rest: bytes) -> bool:
    """What stands behind the last end of a line is a row all the same; if not, it is a part of one.

    Raises:
        ResultsError: it is neither.
    """
    try:
        _row(rest)
    except Refused:
        if rest.startswith(BEGINS) or BEGINS.startswith(rest):
            return False
        what, todo = "this is no row", "name another file; this one is left as it is"
        raise ResultsError(results, number, None, what, todo) from None
    return True
