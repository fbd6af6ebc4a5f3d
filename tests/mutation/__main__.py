"""`python -m tests.mutation`: run the mutants of a part, and keep what came of it."""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.mutation.profile import register
from tests.mutation.rows import KILLED, SURVIVED, TIMEOUT, Row, read_rows
from tests.mutation.score import PAGE, keep, page, read_equivalent, scored
from tests.mutation.server import Recorder, Server
from tests.mutation.table import PARTS, ROOT, Part

if TYPE_CHECKING:
    from tests.mutation.mutants import Mutant

NEEDS = (
    "error: mutmut is not installed; `make mutants` installs it, or: pip install --group mutation"
)
FLAGS = ("-s", "-q", "--tb=native", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--part", choices=PARTS, default="fast")
    parser.add_argument("--module", help="only modules whose names end like this")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--resume", type=Path, help="file of rows: what is in it is not run again")
    parser.add_argument("--again", action="store_true", help="except for those that survived")
    parser.add_argument("--sample", type=int, help="so many mutants, chosen by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cap", type=float, default=4.0, help="CPU seconds of tests a mutant")
    parser.add_argument("--keep", action="store_true", help="write the score from --resume, no run")
    parser.add_argument("--page", action="store_true", help="write docs/mutants.md, no run")
    return parser.parse_args()


def made(part: Part, module: str | None) -> list[Mutant]:
    """The mutants of a part, in the order of its modules."""
    from tests.mutation.mutants import mutants_of

    return [
        mutant
        for name, file in part.modules()
        if module is None or name.endswith(module)
        for mutant in mutants_of(name, file)
    ]


def main() -> int:
    given = arguments()
    if given.page:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if find_spec("mutmut") is None:
        print(NEEDS, file=sys.stderr)
        return 2
    part = PARTS[given.part]
    began = time.monotonic()
    mutants = made(part, given.module)
    text = sum(mutant.text_only for mutant in mutants)
    mutants = [mutant for mutant in mutants if not mutant.text_only]
    rows = tuple(read_rows(given.resume)) if given.resume else ()
    if given.keep:
        git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
        explained = [entry.name for entry in read_equivalent()]
        names = [mutant.name for mutant in mutants]
        date = datetime.now(UTC).date().isoformat()
        score, left = scored(rows, explained, names, text, date, commit)
        keep(part.name, score, left)
        print(f"{part.name}: {score}, {score.noticed} noticed")
        return 0
    if given.sample is not None and given.sample < len(mutants):
        chosen = set(random.Random(given.seed).sample(range(len(mutants)), given.sample))
        mutants = [mutant for at, mutant in enumerate(mutants) if at in chosen]
    last = {row.name: row for row in rows}
    done = {n for n, row in last.items() if not (given.again and row.verdict == SURVIVED)}
    todo = [mutant for mutant in mutants if mutant.name not in done]
    out = given.resume.open("a", encoding="utf-8") if given.resume else sys.stdout
    took = time.monotonic() - began
    said = f"{len(mutants)} mutants, {len(todo)} to run, {text} of text; made in {took:.0f} s"
    print(said, file=sys.stderr)

    told: Counter[str] = Counter()

    def tell(row: Row) -> None:
        told[row.verdict] += 1
        out.write(row.line() + "\n")
        out.flush()

    register()
    recorder = Recorder(frozenset(str(file) for _, file in part.modules()))
    known = given.resume.with_suffix(".costs") if given.resume else None
    server = Server(todo, recorder, given.jobs, given.cap, known, tell)
    recorder.start()
    tests = [str(ROOT / "tests" / f"{name}.py") for name in part.tests]
    came_to = pytest.main([*FLAGS, *tests], plugins=[server])
    counts = ", ".join(f"{told[verdict]} {verdict}" for verdict in (KILLED, TIMEOUT, SURVIVED))
    print(counts, file=sys.stderr)
    # No test fails here, nor does one run: what else there is means that they were not collected.
    return 0 if came_to in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else 2


if __name__ == "__main__":
    sys.exit(main())
