"""The register of known deviations: engines that are known not to do what the specification says.

Theory of operation. An entry names an engine, versions, the rule that is not kept, and how the
first difference shows: by the name of its field and the kind of the action. It is never enough that
a property fell. A divergence that an entry matches is *known*: it is counted, and the run goes on
from the state that the engine is in (`adopt`). An entry has to earn its place: one that applies to
the engine under test, but neither its trace (`shown`) nor a whole campaign shows what it knows, is
*stale*; one whose date has passed is *expired*; and either fails the campaign.

Reading is strict: what is unknown, missing or of the wrong kind is a `DeviationError` that names
file, entry and field.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from datetime import date, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import get_args

from attrs import define, frozen

from servecheck.engines.protocol import Capabilities
from servecheck.lockstep.follow import Divergence
from servespec.actions import Action
from servespec.properties import PROPERTIES
from servespec.rules import RULES

REGISTER = Path(__file__).with_name("deviations.toml")
"""The register that comes with servecheck."""

NUMBER = re.compile("[0-9]+")
KINDS = tuple(kind.__name__ for kind in get_args(Action))
TEXTS = ("id", "engine", "rule", "field", "action", "trace", "link")
FIELDS = (*TEXTS, "versions", "expires")


@define(eq=False)
class DeviationError(Exception):
    """A register that cannot be read. `str` gives one line: where, what, what to do."""

    file: Path
    where: str | None
    what: str
    what_to_do: str

    def __str__(self) -> str:
        where = "" if self.where is None else f", {self.where}"
        return f"{self.file}{where}: {self.what}; {self.what_to_do}"


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

    def applies(self, engine: str, version: str) -> bool:
        """The entry speaks of this engine in this version. A part left out is 0."""
        here, low, high = map(numbers, (version, *self.versions))
        longest = max(len(here), len(low), len(high))
        low, this, high = (v + (0,) * (longest - len(v)) for v in (low, here, high))
        return self.engine == engine and bool(here) and low <= this <= high

    def matches(self, divergence: Divergence) -> bool:
        """The divergence is the one that the entry knows."""
        return (
            self.applies(divergence.engine, divergence.version)
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
        if not entry.applies(engine.name, engine.version):
            continue
        if entry.expires < today:
            yield f"deviation {entry.id!r} expired on {entry.expires}: look again, see {entry.link}"
        elif entry.id not in seen:
            yield f"deviation {entry.id!r} is stale: it matched nothing; take it out"


# --- reading -------------------------------------------------------------------------------


def read_deviations(file: Path = REGISTER) -> tuple[Deviation, ...]:
    """The entries of a register.

    Raises:
        DeviationError: it cannot be read, or is not what it should be.
    """
    try:
        told: dict[str, object] = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DeviationError(
            file, None, f"cannot be read ({error.strerror or error})", "name another file"
        ) from None
    except ValueError as error:
        raise DeviationError(file, None, f"this is no TOML ({error})", "mend it") from None
    tables = told.pop("deviation", [])
    for name in told:
        raise DeviationError(file, name, "this field is unknown", "write [[deviation]] tables")
    if not isinstance(tables, list):
        raise DeviationError(file, "deviation", "this is no list", "write [[deviation]] tables")
    found: list[Deviation] = []
    for number, table in enumerate(tables, 1):
        entry = _entry(file, f"deviation {number}", table)
        if any(entry.id == other.id for other in found):
            raise _wrong(file, f"deviation {number}", "id", f"{entry.id!r} stands twice")
        found.append(entry)
    return tuple(found)


def _wrong(file: Path, entry: str, name: str, what: str, to_do: str = "mend it") -> DeviationError:
    return DeviationError(file, f"{entry}, field {name}", what, to_do)


def _entry(file: Path, where: str, table: object) -> Deviation:
    if not isinstance(table, dict):
        raise DeviationError(file, where, "this is no table", "write [[deviation]] tables")
    fields: dict[str, object] = {str(name): value for name, value in table.items()}
    for name in fields:
        if name not in FIELDS:
            raise _wrong(file, where, name, "it is unknown", f"take one of {', '.join(FIELDS)}")
    for name in FIELDS:
        if name not in fields:
            raise _wrong(file, where, name, "it is missing", "say it")
    texts: dict[str, str] = {}
    for name in TEXTS:
        value = fields[name]
        if not isinstance(value, str) or not value:
            raise _wrong(file, where, name, f"expected a text, found {value!r}")
        texts[name] = value
    rules = {rule.number for rule in RULES} | set(PROPERTIES)
    if texts["rule"] not in rules:
        advice = "take a number or a property of spec/README.md"
        raise _wrong(file, where, "rule", f"{texts['rule']!r} is unknown", advice)
    if texts["action"] not in KINDS:
        advice = f"take one of {', '.join(KINDS)}"
        raise _wrong(file, where, "action", f"{texts['action']!r} is unknown", advice)
    if not texts["link"].startswith("https://"):
        raise _wrong(file, where, "link", f"{texts['link']!r} is no link", "begin with https://")
    expires = fields["expires"]
    if not isinstance(expires, date) or isinstance(expires, datetime):
        raise _wrong(file, where, "expires", f"{expires!r} is no date", "write 2027-01-31")
    trace = file.parent / texts.pop("trace")
    if not trace.is_file():
        raise _wrong(
            file, where, "trace", f"there is no file {trace}", "give the trace that shows it"
        )
    versions = _versions(file, where, fields["versions"])
    return Deviation(**texts, trace=trace, versions=versions, expires=expires, register=file)


def _versions(file: Path, where: str, value: object) -> tuple[str, str]:
    if isinstance(value, list) and len(value) == 2:
        low, high = value
        if isinstance(low, str) and isinstance(high, str) and numbers(low) and numbers(high):
            if numbers(low) <= numbers(high):
                return low, high
            raise _wrong(file, where, "versions", f"{low} is above {high}", "swap them")
    advice = 'write ["0.33.0", "0.33.2"]: from, to'
    raise _wrong(file, where, "versions", f"{value!r} is no range", advice)
