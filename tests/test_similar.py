"""Stories about public reports: which ones are named beside a failure, and how they are kept."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from servecheck.lockstep.compare import Difference
from servecheck.lockstep.follow import ANSWER
from servecheck.lockstep.register import RegisterError
from servecheck.lockstep.report import DECIDED_BY, suspected
from servecheck.lockstep.similar import (
    Clues,
    PublicReport,
    known_reports,
    marks_on,
    read_reports,
    similar,
)
from servecheck.marks import Mark
from servecheck.trace.lasso import WATCHED
from servespec.actions import Complete, Output, Schedule, Submit
from servespec.config import Config
from servespec.machine import Machine
from servespec.policy import VLLM_0_33

UNREPORTED = {"BUD-2"}
"""Nobody has reported a fault that this property would show."""


def ids(clues: Clues) -> list[str]:
    return [report.id for report in similar(clues, known_reports())]


def test_the_reports_cover_the_properties() -> None:
    reports = known_reports()
    assert len(reports) > 100
    assert len({report.url for report in reports}) > 90
    assert {name for report in reports for name in report.properties} == WATCHED.keys() - UNREPORTED
    assert all(len(report.summary) <= 160 for report in reports)


def test_every_field_is_one_that_can_differ() -> None:
    """A pattern that no difference can have would never match."""
    able = [pattern for pattern, _, _ in DECIDED_BY] + [ANSWER]
    for report in known_reports():
        for field in report.fields:
            example = field.replace("*", "x")
            assert any(fnmatchcase(example, pattern) for pattern in able), (report.id, field)


def test_a_victim_that_stays_scheduled_is_known() -> None:
    """Given a victim by priority that the pass had scheduled, when the engine schedules otherwise,
    then the reports that claim just that come first."""
    clues = Clues(None, "scheduled", "15", frozenset({Mark.PREEMPTS_SCHEDULED}))
    assert set(ids(clues)) == {
        "vllm-running-cursor-skip",
        "vllm-priority-victim-stays-scheduled",
        "vllm-priority-victim-blocks-in-output",
    }


def test_a_place_in_the_queue_after_a_preemption_is_known() -> None:
    clues = Clues(None, "waiting", "3", frozenset({Mark.PREEMPTS_ITSELF}))
    assert ids(clues) == ["vllm-preempted-resume-order"]


def test_a_salt_that_is_left_out_is_known() -> None:
    clues = Clues(None, "key on blocks (1,)", "2", frozenset({Mark.SAME_SPELLING_APART}))
    assert ids(clues)[0] == "sglang-namespace-domains-collide"


def test_a_queue_out_of_order_is_no_lost_block() -> None:
    assert suspected(Difference("free queue", (1, 2), (2, 1))) == "LRU-3"
    assert suspected(Difference("free queue", (1, 2), (1,))) == "OWN-1"
    assert suspected(Difference("free queue", (1, 2), (1, 1))) == "OWN-1"
    assert suspected(Difference("waiting", (1, 2), (2, 1))) is None


def test_what_has_not_happened_counts_against_a_report() -> None:
    deferred = Clues("LRU-3", "free queue", "8", frozenset({Mark.DEFERRED}))
    assert ids(deferred)[0] == "vllm-deferred-free-group-order"
    assert ids(Clues("LRU-3", "free queue", "8"))[0] == "vllm-cacheless-free-order-flip"


def test_a_property_alone_is_a_clue() -> None:
    assert ids(Clues("EVI-1")) == ["vllm-uncached-blocks-pollute-lru"]
    assert ids(Clues("GHO-1")) == ["vllm-load-failure-uses-stats-field"]


def test_a_rule_alone_is_none() -> None:
    assert ids(Clues(rule="8")) == []
    assert ids(Clues(rule="8", marks=frozenset({Mark.EVICTION}))) != []
    assert ids(Clues("BUD-2")) == []
    assert ids(Clues()) == []


def test_of_equal_reports_the_more_specific_comes_first() -> None:
    wide = PublicReport("wide", "p", "u", "s.", ("OWN-1", "OWN-2"), (), (), frozenset())
    narrow = PublicReport("narrow", "p", "u", "s.", ("OWN-1",), (), (), frozenset())
    far = PublicReport("far", "p", "u", "s.", ("OWN-3",), (), (), frozenset())
    assert similar(Clues("OWN-1"), (wide, far, narrow)) == (narrow, wide)
    assert similar(Clues("OWN-1"), (wide,) * 9) == (wide,) * 3


def test_marks_are_those_of_the_program() -> None:
    config = Config(
        num_blocks=5, block_size=1, max_model_len=3, max_num_batched_tokens=4, max_num_seqs=1
    )
    program = (Submit("a", (0, 0), 1), Schedule(), Complete((Output("a", (0,)),)))
    machine = Machine(config, VLLM_0_33)
    assert Mark.ENDS_BY_MAX_TOKENS in marks_on(machine, program)
    assert Mark.ENDS_BY_MAX_TOKENS not in marks_on(machine, program[:2])
    assert marks_on(machine, (program[2], *program)) == frozenset(), "legal no further than here"


GOOD = {
    "id": '"x"',
    "project": '"vLLM"',
    "url": '"https://github.com/vllm-project/vllm/issues/1"',
    "summary": '"It broke."',
    "properties": '["OWN-1"]',
}


def written(folder: Path, **changed: str | None) -> Path:
    fields = {**GOOD, **changed}
    text = "\n".join(f"{name} = {value}" for name, value in fields.items() if value is not None)
    file = folder / "reports.toml"
    file.write_text(f"[[report]]\n{text}\n", encoding="utf-8")
    return file


def test_a_report_needs_five_fields(tmp_path: Path) -> None:
    (report,) = read_reports(written(tmp_path))
    assert str(report) == "vLLM: It broke. https://github.com/vllm-project/vllm/issues/1"


def wrong() -> Iterator[tuple[dict[str, str | None], str]]:
    yield {"properties": '["OWN-9"]'}, "report 1, field properties: 'OWN-9' is unknown; take a prop"
    yield {"properties": "[]"}, "field properties: there are none"
    yield {"properties": '"OWN-1"'}, "field properties: expected a list of texts"
    yield {"properties": "[1]"}, "field properties: expected a text, found 1"
    yield {"rules": '["99"]'}, "field rules: '99' is unknown"
    yield {"marks": '["HIT"]'}, "field marks: 'HIT' is unknown"
    yield {"url": '"https://example.org/1"'}, "field url: .* is no report"
    yield {"url": '"http://github.com/a/b/issues/1"'}, "field url: .* is no report"
    yield {"summary": '"It broke"'}, "field summary: 'It broke' is no sentence"
    yield {"summary": None}, "field summary: it is missing"
    yield {"colour": '"red"'}, "field colour: it is unknown"
    yield {"id": '"x"\n[[report]]\nid = "x"'}, "report 1, field project: it is missing"


@pytest.mark.parametrize(("changed", "what"), list(wrong()))
def test_a_wrong_report_is_named(changed: dict[str, str | None], what: str, tmp_path: Path) -> None:
    with pytest.raises(RegisterError, match=what):
        read_reports(written(tmp_path, **changed))


def test_a_report_that_stands_twice_is_named(tmp_path: Path) -> None:
    file = written(tmp_path)
    file.write_text(file.read_text(encoding="utf-8") * 2, encoding="utf-8")
    with pytest.raises(RegisterError, match="report 2, field id: 'x' stands twice"):
        read_reports(file)
