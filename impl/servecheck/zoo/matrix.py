"""All entries with all seeds, in several processes.

Theory of operation. Entries do not know of each other, nor do seeds, so each pair is tried in
whatever process is free; rows come back by seed, in the order of the zoo. What does not depend on
chance is tried with the first seed only, and so is an entry that is said to be masked: there search
has the last word. Each row is kept as it comes (`rows`), its program before it, so a run that is
stopped loses the pairs that were under way, and nothing else. A pair that has a row is tried again
only where a program is asked for and the entry has none yet. Ctrl-C ends the run with the rows so
far.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing
from errno import EACCES
from multiprocessing import active_children, get_context
from os import W_OK, X_OK, access, strerror
from pathlib import Path

from attrs import evolve, frozen

from servecheck.processes import deaf, unheard
from servecheck.trace.model import TraceError
from servecheck.zoo import ENTRIES, SUBJECTS, Entry
from servecheck.zoo.keys import change_of, hashes, strategies_of
from servecheck.zoo.rows import MISSED, Pair, Row, append, latest, read_rows, ready
from servecheck.zoo.run import Plan, try_entry
from servecheck.zoo.shortest import Program, keep, place

Show = Callable[[Row], None]
"""Is told of a row when it is there."""


@frozen
class Matrix:
    """What came of the entries."""

    rows: tuple[Row, ...]
    interrupted: bool = False
    """There are only the rows so far."""

    def count(self, verdict: str) -> int:
        """How many entries have this verdict; missed is one that was missed with some seed."""
        verdicts: dict[str, str] = {}
        for row in self.rows:
            if verdicts.setdefault(row.entry, row.verdict) != MISSED and row.verdict == MISSED:
                verdicts[row.entry] = MISSED
        return [*verdicts.values()].count(verdict)


def matrix(
    entries: Sequence[Entry],
    plan: Plan,
    jobs: int = 1,
    results: Path | None = None,
    show: Show = lambda row: None,
    seeds: int = 1,
) -> Matrix:
    """Try every entry with so many seeds, from the plan's on, as far as there is no row in the file
    of results yet.

    Raises:
        ResultsError: the file cannot be read or written.
        TraceError: a program cannot be kept.
        BrokenProcessPool: a process died.
    """
    wanted = {
        (entry.id, plan.seed + i): evolve(plan, seed=plan.seed + i, chance_only=i > 0)
        for i in range(seeds)
        for entry in entries
        if i == 0 or not entry.masked
    }
    known: dict[Pair, Row] = {}
    if results is not None:
        ready(results)
        known = _known(results, plan)
    if plan.keep is not None:
        _made(plan.keep, entries)
    rows: dict[Pair, Row] = {}
    for pair, asked in wanted.items():
        row = known.get(pair)
        if row is not None and (asked.chance_only or not row.chance_only) and _whole(row, plan):
            rows[pair] = row
    left = [(name, asked) for (name, seed), asked in wanted.items() if (name, seed) not in rows]
    interrupted = False
    try:
        with closing(_tried(left, min(jobs, len(left)))) as coming:
            for row, program in coming:
                rows[row.entry, row.seed] = row
                if program is not None and plan.keep is not None:
                    keep(plan.keep, ENTRIES[row.entry], program, row.seed)
                if results is not None:
                    append(results, row)
                show(row)
    except KeyboardInterrupt:
        interrupted = True
    return Matrix(tuple(rows[pair] for pair in wanted if pair in rows), interrupted)


def _known(results: Path, plan: Plan) -> dict[Pair, Row]:
    """The rows that still hold."""
    asked = strategies_of(hashes()), plan.actions
    rows = [row for row in read_rows(results) if (row.strategies, row.actions) == asked]
    changes = {
        name: change_of(ENTRIES[name]) for name in {row.entry for row in rows} if name in ENTRIES
    }
    return latest(row for row in rows if changes.get(row.entry) == row.change)


def _whole(row: Row, plan: Plan) -> bool:
    """The program of a row was kept too, if somebody wants it."""
    return plan.keep is None or row.program is None or place(plan.keep, row.entry).is_file()


def _made(folder: Path, entries: Iterable[Entry]) -> None:
    """The folder for programs, and room for each in it, before a minute is spent on the first."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not access(folder, W_OK | X_OK):
            raise PermissionError(EACCES, strerror(EACCES))
    except OSError as error:
        why = f"is no folder that can be written to ({error.strerror or error})"
        raise TraceError(folder, None, None, why, "name another folder") from None
    for path in (place(folder, entry.id) for entry in entries):
        if path.exists() and not path.is_file():
            raise TraceError(path, None, None, "is no regular file", "take it out of the folder")


# --- processes -----------------------------------------------------------------------------------


def tried(name: str, plan: Plan) -> tuple[Row, Program | None]:
    """An entry by its id; and the shortest program on which it is known to differ."""
    row, shortest = try_entry(ENTRIES[name], plan)
    return row, None if shortest is None else (shortest.machine, shortest.actions)


def _tried(left: Sequence[tuple[str, Plan]], jobs: int) -> Generator[tuple[Row, Program | None]]:
    if jobs < 2:
        yield from (tried(name, plan) for name, plan in left)
        return
    others = set(active_children())
    with ProcessPoolExecutor(jobs, get_context("spawn"), deaf) as pool:
        try:
            with unheard():
                waiting = [pool.submit(tried, name, plan) for name, plan in left]
            for done in as_completed(waiting):
                yield done.result()
        except BaseException:
            # What is under way can take a minute, and nobody waits for it any more.
            with unheard():
                pool.shutdown(wait=False, cancel_futures=True)
                for mine in set(active_children()) - others:
                    mine.terminate()
            raise


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
