"""What is made from the code and committed is never stale."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from servecheck.document import document, documents, main, standing
from servespec.errors import SpecError
from servespec.policy import PROFILES, VLLM_0_33
from servespec.properties import PROPERTIES
from servespec.rules import RULES
from servespec.theory import THEOREMS, Kind, Theorem, theorem

made = cache(documents)


@pytest.mark.parametrize("there", made(), ids=lambda there: there.name)
def test_what_is_committed_is_true(there: Path) -> None:
    assert there.read_text(encoding="utf-8") == made()[there], "run `make docs`"


def test_the_check_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0
    said = capsys.readouterr().out.splitlines()
    pages = ["spec/README.md", "traces/trace.schema.json", "docs/zoo.md", "docs/stories.md"]
    assert said[: len(pages)] == [f"{page} is true" for page in pages]
    assert len(said) == len(made())


def test_the_check_names_what_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "traces" / "trace.schema.json"
    monkeypatch.setattr("servecheck.document.documents", lambda: {there: "{}"})
    assert main(["--check"]) == 1
    there.parent.mkdir()
    there.write_text("[]", encoding="utf-8")
    assert main(["--check"]) == 1
    said = "traces/trace.schema.json is stale: run `make docs`\n"
    assert capsys.readouterr().out == said * 2
    assert main([]) == 0
    assert main(["--check"]) == 0


def test_every_recorded_rule_has_its_place() -> None:
    numbers = {rule.number for rule in RULES}
    assert {str(n) for n in range(1, 38)} <= numbers
    assert all(rule.statement and rule.engine for rule in RULES)


@pytest.mark.parametrize("name", PROFILES)
def test_the_document_says_how_every_property_stands(name: str) -> None:
    text = document()
    for p in PROPERTIES.values():
        assert p.statement in text
        assert standing(p, PROFILES[name]) in text


def test_a_property_stands_as_the_registry_says() -> None:
    assert standing(PROPERTIES["OWN-1"], VLLM_0_33) == "holds"
    assert standing(PROPERTIES["EVI-1"], PROFILES["MINIATURE"]) == "**falls**"
    assert (
        standing(PROPERTIES["BUD-2"], VLLM_0_33)
        == "holds (falls when drafts are scheduled (γ > 0))"
    )


def test_the_document_states_every_theorem_once() -> None:
    text = document()
    for t in THEOREMS.values():
        said, place = t.statement.replace("|", "\\|"), t.function.removeprefix("servespec.")
        assert text.count(f"\n| {t.id} | {t.kind.name} | {said} | `{place}` |\n") == 1


def test_a_theorem_has_one_place_and_says_something(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent() -> None: ...

    def first() -> None:
        """It is said.

        How it is computed is not part of it.
        """

    def second() -> None:
        """It is said again."""

    known: dict[str, Theorem] = {}
    monkeypatch.setattr("servespec.theory.register.THEOREMS", known)
    with pytest.raises(SpecError, match=r"NEW-1: .*silent says nothing"):
        theorem("NEW-1", Kind.X)(silent)
    assert theorem("NEW-1", Kind.X)(first) is first
    assert theorem("NEW-1", Kind.X)(first) is first, "as when its module is read again"
    place = f"{first.__module__}.{first.__qualname__}"
    assert known == {"NEW-1": Theorem("NEW-1", Kind.X, "It is said.", place, first)}
    with pytest.raises(SpecError, match=r"NEW-1: is stated by .*first"):
        theorem("NEW-1", Kind.X)(second)
