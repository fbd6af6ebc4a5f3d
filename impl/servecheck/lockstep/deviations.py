"""The register of known deviations: engines that are known not to do what the specification says.

Theory of operation. An entry names an engine, versions, the rule that is not kept, and how the
first difference shows: by the name of its field and the kind of the action. It is never enough that
a property fell. A divergence that an entry matches is *known*: it is counted, and the run goes on
from the state that the engine is in (`adopt`). An entry has to earn its place: one that applies to
the engine under test, but neither its trace (`shown`) nor a whole campaign shows what it knows, is
*stale*; one whose date has passed is *expired*; and either fails the campaign.

Reading is strict: see `lockstep.register`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import date, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import get_args

from attrs import frozen

from servecheck.engines.protocol import Capabilities, Level
from servecheck.lockstep.follow import Divergence
from servecheck.lockstep.register import Table, tables
from servespec.actions import Action
from servespec.properties import PROPERTIES
from servespec.rules import RULES

REGISTER = Path(__file__).with_name("deviations.toml")
"""The register that comes with servecheck."""

NUMBER = re.compile("[0-9]+")
KINDS = tuple(kind.__name__ for kind in get_args(Action))
TEXTS = ("id", "engine", "rule", "field", "action", "trace", "link")
FIELDS = (*TEXTS, "versions", "expires")
OPTIONAL = ("levels",)
LEVELS = {level.name.lower(): level for level in Level}


@frozen
class Deviation:
    """One entry."""

    id: str
    engine: str
    versions: tuple[str, str]
    """From and to, both included."""
    rule: str
    field: str
    action: str
    trace: Path
    """The smallest program that shows it; in the register relative to that."""
    link: str
    expires: date
    register: Path
    """Where the entry stands."""
    levels: frozenset[Level] = frozenset(Level)
    """At which it can be seen."""

    def applies(self, engine: str, version: str, level: Level) -> bool:
        """The entry speaks of this engine in this version, compared at this level. A part of a
        version that is left out is 0."""
        if level not in self.levels:
            return False
        here, low, high = map(numbers, (version, *self.versions))
        longest = max(len(here), len(low), len(high))
        low, this, high = (v + (0,) * (longest - len(v)) for v in (low, here, high))
        return self.engine == engine and bool(here) and low <= this <= high

    def matches(self, divergence: Divergence) -> bool:
        """The divergence is the one that the entry knows."""
        return (
            self.applies(divergence.engine, divergence.version, divergence.level)
            and type(divergence.action).__name__ == self.action
            and fnmatchcase(divergence.differences[0].field, self.field)
        )


def numbers(version: str) -> tuple[int, ...]:
    """A version as numbers, up to the first part that is more than one: 0.33.1+cu128 is 0.33.1."""
    found: tuple[int, ...] = ()
    for part in version.split("."):
        digits = NUMBER.match(part)
        if digits is None:
            break
        found += (int(digits[0]),)
        if digits[0] != part:
            break
    return found


def complaints(
    deviations: Iterable[Deviation], engine: Capabilities, met: Iterable[str], today: date
) -> Iterator[str]:
    """What is wrong with the entries that apply to an engine, after a whole campaign."""
    seen = set(met)
    for entry in deviations:
        if not entry.applies(engine.name, engine.version, engine.level):
            continue
        if entry.expires < today:
            yield f"deviation {entry.id!r} expired on {entry.expires}: look again, see {entry.link}"
        elif entry.id not in seen:
            yield f"deviation {entry.id!r} is stale: it matched nothing; take it out"


# --- reading -------------------------------------------------------------------------------


def read_deviations(file: Path = REGISTER) -> tuple[Deviation, ...]:
    """The entries of a register.

    Raises:
        RegisterError: it cannot be read, or is not what it should be.
    """
    return tuple(_entry(table) for table in tables(file, "deviation", FIELDS, OPTIONAL))


def _entry(table: Table) -> Deviation:
    texts = {name: table.text(name) for name in TEXTS}
    rules = {rule.number for rule in RULES} | set(PROPERTIES)
    if texts["rule"] not in rules:
        advice = "take a number or a property of spec/README.md"
        raise table.wrong("rule", f"{texts['rule']!r} is unknown", advice)
    if texts["action"] not in KINDS:
        advice = f"take one of {', '.join(KINDS)}"
        raise table.wrong("action", f"{texts['action']!r} is unknown", advice)
    if not texts["link"].startswith("https://"):
        raise table.wrong("link", f"{texts['link']!r} is no link", "begin with https://")
    expires = table.fields["expires"]
    if not isinstance(expires, date) or isinstance(expires, datetime):
        raise table.wrong("expires", f"{expires!r} is no date", "write 2027-01-31")
    trace = table.file.parent / texts.pop("trace")
    if not trace.is_file():
        raise table.wrong("trace", f"there is no file {trace}", "give the trace that shows it")
    versions = _versions(table)
    named = table.texts("levels", LEVELS, f"one of {', '.join(LEVELS)}") or tuple(LEVELS)
    levels = frozenset(LEVELS[name] for name in named)
    return Deviation(
        **texts,
        trace=trace,
        versions=versions,
        expires=expires,
        register=table.file,
        levels=levels,
    )


def _versions(table: Table) -> tuple[str, str]:
    value = table.fields["versions"]
    if isinstance(value, list) and len(value) == 2:
        low, high = value
        if isinstance(low, str) and isinstance(high, str) and numbers(low) and numbers(high):
            if numbers(low) <= numbers(high):
                return low, high
            raise table.wrong("versions", f"{low} is above {high}", "swap them")
    advice = 'write ["0.33.0", "0.33.2"]: from, to'
    raise table.wrong("versions", f"{value!r} is no range", advice)
