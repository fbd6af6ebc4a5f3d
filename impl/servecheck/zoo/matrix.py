"""All entries, in several processes, and the file that a run is resumed from.

Theory of operation. Entries do not know of each other, so each is tried in whatever process is
free; rows come back in the order of the zoo. A file of results has a line for each row, appended
as it comes: a run that is stopped loses the entries that were under way, and nothing else. Rows of
another seed, budget, change or strategy are left in it and not counted; of several the last counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from attrs import asdict, frozen

from servecheck.strict import FileError, Refused, parse
from servecheck.trace.codec import decode
from servecheck.trace.model import Verdict
from servecheck.trace.write import record
from servecheck.zoo import ENTRIES, SUBJECTS, Entry
from servecheck.zoo.keys import change_of, hashes, strategies_of
from servecheck.zoo.run import Plan, Row, try_entry

Show = Callable[[Row], None]
"""Is told of a row when it is there."""

KILLED, MISSED, INDISTINGUISHABLE = "killed", "missed", "indistinguishable"


class ResultsError(FileError):
    """A file of results that cannot be read or written."""


@frozen
class Matrix:
    """What came of the entries."""

    rows: tuple[Row, ...]

    def count(self, verdict: str) -> int:
        """How many rows have this verdict."""
        return sum(row.verdict == verdict for row in self.rows)


def matrix(
    entries: Sequence[Entry],
    plan: Plan,
    jobs: int = 1,
    results: Path | None = None,
    show: Show = lambda row: None,
) -> Matrix:
    """Try every entry that has no row in the file of results yet.

    Raises:
        ResultsError: the file cannot be read or written.
    """
    known = {} if results is None else _known(results, plan)
    rows = {entry.id: known[entry.id] for entry in entries if entry.id in known}
    for row in _tried([entry for entry in entries if entry.id not in rows], plan, jobs):
        rows[row.entry] = row
        if results is not None:
            _append(results, row)
        show(row)
    return Matrix(tuple(rows[entry.id] for entry in entries))


def tried(name: str, plan: Plan) -> Row:
    """An entry by its id; its shortest program is kept, if the plan says where."""
    row, shortest = try_entry(ENTRIES[name], plan)
    if shortest is not None and plan.keep is not None:
        path = plan.keep / f"{name}.jsonl"
        record(path, shortest.machine, shortest.actions, Verdict("holds"), seed=plan.seed)
    return row


def _tried(entries: Sequence[Entry], plan: Plan, jobs: int) -> Iterator[Row]:
    if jobs < 2:
        yield from (tried(entry.id, plan) for entry in entries)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        waiting = [pool.submit(tried, entry.id, plan) for entry in entries]
        try:
            for done in as_completed(waiting):
                yield done.result()
        finally:
            for left in waiting:
                left.cancel()


# --- the file ------------------------------------------------------------------------------------


def _known(results: Path, plan: Plan) -> dict[str, Row]:
    """The rows that still hold, by entry."""
    if not results.exists():
        return {}
    strategies = strategies_of(hashes())
    return {
        row.entry: row
        for row in read_rows(results)
        if row.entry in ENTRIES
        and (row.change, row.strategies) == (change_of(ENTRIES[row.entry]), strategies)
        and (row.seed, row.actions) == (plan.seed, plan.actions)
    }


def read_rows(results: Path) -> Iterator[Row]:
    """The rows of a file.

    Raises:
        ResultsError: it cannot be read, or a line is no row.
    """
    try:
        lines = results.read_bytes().splitlines()
    except OSError as error:
        raise ResultsError(
            results, None, None, f"cannot be read ({error})", "name another"
        ) from None
    for number, line in enumerate(lines, 1):
        try:
            yield decode(Row, parse(line))
        except Refused as error:
            what = f"this is no row ({error})"
            raise ResultsError(results, number, None, what, "take the line out") from None


def _append(results: Path, row: Row) -> None:
    text = json.dumps(asdict(row), allow_nan=False) + "\n"
    try:
        results.parent.mkdir(parents=True, exist_ok=True)
        with results.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        why = f"cannot be written ({error.strerror or error})"
        raise ResultsError(results, None, None, why, "name another file") from None


def chosen(names: Iterable[str]) -> tuple[Entry, ...]:
    """The entries with these ids, or all, in the order of the subjects."""
    wanted = set(names)
    order = [module.__name__.rpartition(".")[2] for module in SUBJECTS]
    return tuple(
        entry
        for subject in order
        for entry in ENTRIES.values()
        if entry.subject == subject and (not wanted or entry.id in wanted)
    )
