"""The public reports of faults, and which entries of the zoo stand for each."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from attrs import frozen

from servecheck.lockstep.register import tables
from servecheck.zoo import ENTRIES, Entry

REPORTS = Path(__file__).with_name("reports.toml")


@frozen
class PublicReport:
    """A fault that somebody reported, or a rule that somebody wrote down."""

    id: str
    urls: tuple[str, ...]
    entries: tuple[str, ...]
    """The faults of the zoo that stand for it;"""
    why: str | None
    """or why none does."""


def read_reports(file: Path = REPORTS) -> tuple[PublicReport, ...]:
    """All reports, in the order of the file.

    Raises:
        RegisterError: the file cannot be read, names an entry that there is not, or says neither
            or both of which entries stand for a report and why none does.
    """
    found = []
    for table in tables(file, "report", ("id", "urls"), ("entries", "why")):
        entries = table.texts("entries", ENTRIES, "an entry of the zoo")
        why = table.text("why") if "why" in table.fields else None
        if bool(entries) == (why is not None):
            raise table.wrong("entries", "either entries stand for a report, or there is a why")
        urls = table.texts("urls", None, "a link")
        if not urls or not all(url.startswith("https://") for url in urls):
            raise table.wrong("urls", f"{urls} are no links", "begin each with https://")
        found.append(PublicReport(table.text("id"), urls, entries, why))
    return tuple(found)


def reports_of(entry: Entry, reports: Iterable[PublicReport]) -> tuple[PublicReport, ...]:
    """The reports that an entry stands for."""
    return tuple(report for report in reports if entry.id in report.entries)
