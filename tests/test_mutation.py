"""The driver of generic mutants: what it makes, that it kills, and what is kept of its runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from attrs import evolve

from tests.mutation import __main__ as mutation
from tests.mutation.names import Name
from tests.mutation.rows import KILLED, SURVIVED, TIMEOUT, Row, read_rows
from tests.mutation.score import PAGE, page, read_equivalent, read_score, read_survivors, scored
from tests.mutation.table import PARTS, ROOT

NEEDS = "needs mutmut, which `make mutants` installs: pip install --group mutation"
FILES = {name: file for part in PARTS.values() for name, file in part.modules()}


@cache
def names_in(module: str) -> frozenset[Name]:
    """The names of a module's mutants, those of text alone left out."""
    mutants = pytest.importorskip("tests.mutation.mutants", reason=NEEDS, exc_type=ImportError)
    made = mutants.mutants_of(module, FILES[module])
    return frozenset(mutant.name for mutant in made if not mutant.text_only)


def mutants_in(tmp_path: Path, source: str) -> list[tuple[str, str, bool]]:
    """What is made of a module: the function, the lines after, and whether it is text alone."""
    mutants = pytest.importorskip("tests.mutation.mutants", reason=NEEDS, exc_type=ImportError)
    file = tmp_path / "module.py"
    file.write_text(source, encoding="utf-8")
    made = mutants.mutants_of("module", file)
    return [(m.name.function, m.name.after, m.text_only) for m in made]


# --- what a mutant is ------------------------------------------------------------------------


def test_a_function_with_a_decorator_is_mutated_and_what_is_read_once_is_not(
    tmp_path: Path,
) -> None:
    """Given a method and a property with decorators, an annotation and a number of a class; then
    the bodies are changed, and nothing else."""
    source = (
        "class A:\n"
        "    size: int = 1\n\n"
        "    @rule(2)\n"
        "    def grown(self, by: Literal[3]) -> int:\n"
        "        return self.size + by\n\n"
        "    @property\n"
        "    def free(self) -> bool:\n"
        "        return self.size < 4\n"
    )
    assert mutants_in(tmp_path, source) == [
        ("A.grown", "return self.size - by", False),
        ("A.free", "return self.size <= 4", False),
        ("A.free", "return self.size < 5", False),
    ]


def test_what_is_only_said_is_text(tmp_path: Path) -> None:
    """Given a guard that says why, and an error; then the condition is a mutant, and all that is
    said is text, by its form."""
    source = (
        "def f(n: int) -> str:\n"
        '    require(n > 0, "too few", f"{n - 1}")\n'
        "    if n:\n"
        '        raise ValueError(n + 1, "x")\n'
        '    return "done"\n'
    )
    made = mutants_in(tmp_path, source)
    assert {after for _, after, text in made if not text} == {
        'require(None, "too few", f"{n - 1}")',
        'require("too few", f"{n - 1}")',
        'require(n >= 0, "too few", f"{n - 1}")',
        'require(n > 1, "too few", f"{n - 1}")',
    }
    assert any(after == 'raise ValueError(n - 1, "x")' and text for _, after, text in made)


def test_the_same_change_twice_has_two_names(tmp_path: Path) -> None:
    mutants = pytest.importorskip("tests.mutation.mutants", reason=NEEDS, exc_type=ImportError)
    file = tmp_path / "module.py"
    file.write_text("def f(a):\n    g(a < 1)\n    h()\n    g(a < 1)\n", encoding="utf-8")
    names = [m.name for m in mutants.mutants_of("module", file) if m.name.after == "g(a <= 1)"]
    assert [name.again for name in names] == [0, 1]


# --- the driver -----------------------------------------------------------------------------------


def test_it_kills_and_an_equivalent_mutant_survives(tmp_path: Path) -> None:
    """Given the block manager, which has tests of its own; when a sample of its mutants is run,
    then tests notice them; one that is listed as equivalent is not noticed."""
    pytest.importorskip("tests.mutation.mutants", reason=NEEDS, exc_type=ImportError)
    rows = tmp_path / "rows.jsonl"
    command = [sys.executable, "-m", "tests.mutation", "--part", "sample", "--resume", str(rows)]
    path = os.pathsep.join(map(str, (ROOT / "spec", ROOT / "impl", ROOT)))
    env = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True)
    found = {row.name: row for row in read_rows(rows)}
    verdicts = {name: row.verdict for name, row in found.items()}
    alike = {e.name for e in read_equivalent() if e.name in found}
    assert alike
    assert {verdicts[name] for name in alike} == {SURVIVED}
    noticed = [name for name, verdict in verdicts.items() if verdict in (KILLED, TIMEOUT)]
    assert len(noticed) > 60
    assert len(noticed) + len(alike) == len(found), [
        name.said() for name in verdicts.keys() - set(noticed) - alike
    ]
    assert all(found[name].by.startswith("tests/test_block_manager.py::") for name in noticed)
    again = subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True, text=True)
    assert ", 0 to run," in again.stderr
    assert again.stderr.splitlines()[-1] == "0 killed, 0 timeout, 0 survived"
    assert len(list(read_rows(rows))) == len(found)


def test_without_mutmut_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, before anything is done; the page is written without it."""
    monkeypatch.setattr(mutation, "find_spec", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["python -m tests.mutation", "--part", "rules"])
    assert mutation.main() == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", mutation.NEEDS + "\n")
    there = PAGE.read_bytes()
    monkeypatch.setattr(sys, "argv", ["python -m tests.mutation", "--page"])
    assert mutation.main() == 0
    assert PAGE.read_bytes() == there


def test_a_row_that_was_half_written_is_run_again(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    row = Row(Name("m", "f", "a", "b"), KILLED, "t", 0.1)
    file.write_text(row.line() + "\n" + row.line()[:30], encoding="utf-8")
    assert list(read_rows(file)) == [row]


def test_a_score_counts_what_there_is_and_explains_only_survivors() -> None:
    """Given rows of four mutants, one of which is no longer there, and an explanation of one that
    survived and one that did not; then three count, and one survivor is explained."""
    a, b, c, gone = (Name("m", "f", "x", after) for after in "abcd")
    rows = [
        Row(a, SURVIVED, "", 1.0),
        Row(b, SURVIVED, "", 1.0),
        Row(c, SURVIVED, "", 1.0),
        Row(c, KILLED, "t", 1.0),
        Row(gone, KILLED, "t", 1.0),
    ]
    score, left = scored(rows, [a, c], [a, b, c], 5, "2026-01-01", "abc")
    assert (score.mutants, score.run, score.killed, score.equivalent) == (3, 3, 1, 1)
    assert left == (b,)
    assert score.noticed == "50.0 %"
    assert evolve(score, run=1, killed=0).noticed == "none"


# --- what is kept -----------------------------------------------------------------------------


def test_the_page_is_true() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.mutation --page"


def test_every_explained_mutant_still_stands_in_its_function() -> None:
    """Whether or not mutmut is there: the lines before are lines of the module."""
    listed = read_equivalent()
    assert len({entry.name for entry in listed}) == len(listed)
    for entry in listed:
        lines = FILES[entry.name.module].read_text(encoding="utf-8").splitlines()
        assert entry.name.before in " ".join(line.strip() for line in lines), entry.name.said()
        assert entry.why.endswith(".")


@pytest.mark.parametrize("module", sorted({entry.name.module for entry in read_equivalent()}))
def test_every_explained_mutant_is_one(module: str) -> None:
    listed = {entry.name for entry in read_equivalent() if entry.name.module == module}
    assert sorted(name.said() for name in listed - names_in(module)) == []


def test_who_survived_is_counted_and_not_explained() -> None:
    explained = {entry.name for entry in read_equivalent()}
    survivors = read_survivors()
    for part, score in read_score().items():
        assert len(survivors[part]) == score.unexplained
        assert score.killed + score.timeout + score.equivalent + score.unexplained == score.run
        assert not explained.intersection(survivors[part])
    assert json.dumps(sorted(survivors)) == json.dumps(sorted(p for p in PARTS if p != "sample"))
