"""What is kept of a run: the score, who survived, and the page that tells of both.

Theory of operation. `score.toml` has one table a part, written from the rows of a run;
`survivors.jsonl` names who survived and is not explained; `equivalent/PART.toml` is written by
people, and says of mutants why nothing can tell them from the code as it is. `docs/mutants.md` is
made from these, and a test fails where it is stale. A mutant that is explained counts as equivalent
only if it did survive: one that a test notices is not equivalent, whatever is said of it.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from attrs import asdict, frozen

from tests.mutation.names import Name
from tests.mutation.rows import KILLED, SURVIVED, TIMEOUT, Row
from tests.mutation.table import PARTS, ROOT

HERE = Path(__file__).parent
SCORE = HERE / "score.toml"
SURVIVORS = HERE / "survivors.jsonl"
EQUIVALENT = HERE / "equivalent"
PAGE = ROOT / "docs" / "mutants.md"


@frozen
class Score:
    """Of one part."""

    mutants: int
    """All that are more than text."""
    text: int
    """Those of text alone, which are not run."""
    run: int
    """Fewer than `mutants` where a sample was run."""
    killed: int
    timeout: int
    """Ended by CPU time, an endless loop most often; not among `killed`."""
    equivalent: int
    unexplained: int
    date: str
    commit: str
    """Of the code that was mutated."""

    @property
    def noticed(self) -> str:
        """Of all that could be noticed."""
        could = self.run - self.equivalent
        return f"{100 * (self.killed + self.timeout) / could:.1f} %" if could else "none"


@frozen
class Equivalent:
    """A mutant that nothing can tell from the code as it is."""

    name: Name
    why: str


def read_equivalent(folder: Path = EQUIVALENT) -> tuple[Equivalent, ...]:
    """What is explained, in the order of the parts."""
    found = []
    files = [file for file in (folder / f"{name}.toml" for name in PARTS) if file.exists()]
    told = [tomllib.loads(file.read_text(encoding="utf-8")) for file in files]
    for entry in [entry for one in told for entry in one.get("equivalent", [])]:
        why = entry.pop("why")
        found.append(Equivalent(Name(**entry), why))
    return tuple(found)


def read_score(file: Path = SCORE) -> dict[str, Score]:
    """The score of each part that has one, in the order of the parts."""
    told = tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return {name: Score(**told[name]) for name in PARTS if name in told}


def read_survivors(file: Path = SURVIVORS) -> dict[str, tuple[Name, ...]]:
    """Who survived and is not explained, by part."""
    found: dict[str, list[Name]] = {name: [] for name in PARTS if name != "sample"}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        entry = json.loads(line)
        found[entry.pop("part")].append(Name(**entry))
    return {name: tuple(names) for name, names in found.items()}


def scored(
    rows: Iterable[Row],
    explained: Iterable[Name],
    mutants: Sequence[Name],
    text: int,
    date: str,
    commit: str,
) -> tuple[Score, tuple[Name, ...]]:
    """The score of a part, and who survived unexplained; rows of mutants that there no longer are
    do not count."""
    last = {row.name: row for row in rows}
    there = [last[name] for name in mutants if name in last]
    verdicts = Counter(row.verdict for row in there)
    known = set(explained)
    survived = [row.name for row in there if row.verdict == SURVIVED]
    left = tuple(name for name in survived if name not in known)
    score = Score(
        len(mutants),
        text,
        len(there),
        verdicts[KILLED],
        verdicts[TIMEOUT],
        len(survived) - len(left),
        len(left),
        date,
        commit,
    )
    return score, left


def keep(part: str, score: Score, survivors: Iterable[Name]) -> None:
    """Write a part's score and survivors, and the page."""
    scores = {**read_score(), part: score}
    SCORE.write_text(
        "# Written by `python -m tests.mutation --keep`.\n"
        + "".join(
            f"\n[{name}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in asdict(s).items())
            for name in PARTS
            if (s := scores.get(name))
        ),
        encoding="utf-8",
    )
    names = {**read_survivors(), part: tuple(survivors)}
    lines = [
        json.dumps({"part": p, **asdict(n)}) + "\n" for p, found in names.items() for n in found
    ]
    SURVIVORS.write_text("".join(lines), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")


TOP = """\
# Generic mutants

This page is made by `python -m tests.mutation --page` from the files in `tests/mutation/`; do not
edit it.

A fault of the zoo is one that an engine had. A *mutant* is a fault that nobody had to think of: one
operator, number, argument or branch of the code is changed, and a test should notice. The changes
are those of [mutmut](https://mutmut.readthedocs.io), taken from it as a library. Its own runner
leaves out every function with a decorator, and here rules, properties and theorems are registered
by decorators; and it wraps what it changes, so that code that looks at code sees the wrapper.

* Every function and method is mutated, with or without decorators. What is decided when a module is
  read (decorators, annotations, defaults that are calls, class bodies) is not.
* Changes of text alone are counted apart and not run: literals, f-strings, what is raised, what
  `require` says, `__repr__`. That is a rule about the form of the code
  (`tests/mutation/mutants.py`).
* Tests are collected once. A mutant is a fork in which the code of one function is exchanged; it is
  shown the tests that call that function, cheap and close ones and broad ones in turn, up to the
  first that fails. The bound is CPU time, and an endless loop counts as noticed.
* A mutant that nothing can tell from the code is *equivalent*; each is explained in
  `tests/mutation/equivalent`. Who survived and is not explained is named in
  `tests/mutation/survivors.jsonl`.

`make mutants PART=fast` runs a part (`fast`, `rules`, `properties`, `theory`); it goes on where it
was stopped, and `MUTANTS_ARGS="--sample 50"` takes a part of the part.

## Score

"""

COLUMNS = (
    "part",
    "mutants",
    "of text alone",
    "run",
    "killed",
    "by CPU time",
    "equivalent",
    "unexplained",
    "noticed of those that could be",
    "commit",
    "date",
)


def page() -> str:
    """`docs/mutants.md`."""
    text = TOP + f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}\n"
    for name, s in read_score().items():
        run = f"{s.run}" if s.run == s.mutants else f"{s.run} (sample)"
        cells = (name, s.mutants, s.text, run, s.killed, s.timeout, s.equivalent, s.unexplained)
        text += f"| {' | '.join(map(str, cells))} | {s.noticed} | {s.commit} | {s.date} |\n"
    text += "\n## Equivalent mutants\n\nBy the reason why nothing can tell them apart.\n"
    whys: dict[str, list[Name]] = {}
    for entry in read_equivalent():
        whys.setdefault(entry.why, []).append(entry.name)
    for why, names in whys.items():
        where = sorted({f"`{n.module.rpartition('.')[2]}.{n.function}`" for n in names})
        text += f"\n* {why} ({len(names)}: {', '.join(where)})"
    return text + ("\n" if whys else "")
