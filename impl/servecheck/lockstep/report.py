"""The failure report: one fixed form, for a property that fell and for an engine that diverged.

Theory of operation. A `Report` holds the lines' contents; `lines` puts them in order. Nothing in it
depends on when or where it was made. Of two values with parts the first part that differs is shown,
of long sequences the place where they first differ. Which rule a divergence goes against can only
be guessed from what shows it: the rule named is the one that decides the field that differs first.
Public reports of faults that look alike are named (`similar`), three at most.

    verdict    diverges
    property   LOCKSTEP: An engine that follows shows, after every action, …
    rule       8 (by the field that differs first): A table is let go …
    engine     fast 0.1.0, level STATE
    profile    VLLM_0_33 with …
    sizes      num_blocks=5, …
    program    3 actions
      1  submit r0: …
    expected   free queue: …
    observed   free queue: …
    why        …
    similar    vLLM: … https://github.com/vllm-project/vllm/issues/11562
    replay     servecheck fuzz --engine fast --program traces/failures/LOCKSTEP-fast-1f0c9a27.jsonl
"""

from __future__ import annotations

from collections import Counter
from fnmatch import fnmatchcase

import attrs
from attrs import frozen

from servecheck.engines.protocol import Capabilities
from servecheck.lockstep.compare import Difference
from servecheck.lockstep.follow import ANSWER
from servecheck.lockstep.similar import Clues, PublicReport, known_reports, marks_on, similar
from servecheck.lockstep.subject import Adoption, Parted
from servecheck.tell import tell_action, tell_config, tell_policy, tell_program
from servespec.actions import Action
from servespec.config import Config
from servespec.machine import Machine
from servespec.policy import Policy
from servespec.rules import RULES

AROUND = 3
"""Elements of a sequence that are shown before and after the first that differs."""
MOST = 160
"""Characters of one side."""

LOCKSTEP = "LOCKSTEP"
REFINES = {
    "REF-1": "After every action what the fast engine holds, and its events, are the machine's.",
    "REF-2": "A fast engine that is built from a state goes on as one that came all the way.",
}
STATEMENT = "An engine that follows shows, after every action, what the specification says."

DECIDED_BY = (
    ("hits of *", "*", "11"),
    ("blocks of *", "*", "5"),
    ("free queue", "Schedule", "7"),
    ("free queue", "*", "8"),
    ("ref counts", "Schedule", "7"),
    ("ref counts", "*", "8"),
    ("key on blocks *", "*", "2"),
    ("index*", "*", "10"),
    ("running", "Schedule", "27"),
    ("running", "*", "29"),
    ("waiting", "*", "3"),
    ("scheduled", "*", "15"),
    ("preempted", "*", "19"),
    ("plan of *: start", "*", "11"),
    ("plan of *: tokens", "*", "16"),
    ("*: drafts", "Complete", "32"),
    ("*: drafts", "*", "28"),
    ("*: table", "*", "5"),
    ("*: computed", "Complete", "32"),
    ("*: computed", "*", "28"),
    ("*: length", "*", "32"),
    ("finished", "*", "29"),
    ("event BlockStored*", "*", "10"),
    ("event BlockRemoved*", "*", "6"),
    ("event CacheCleared*", "*", "9"),
    ("end of *", "*", "29"),
    ("accepted", "*", "S"),
    ("aborted", "*", "30"),
    ("reset", "*", "9"),
    ("cleared", "*", "9"),
    ("*: pool.free", "Schedule", "7"),
    ("*: pool.free", "*", "8"),
    ("*: pool.index*", "*", "10"),
    ("free queue backwards", "*", "8"),
)
"""Which rule decides a field, by the action after which it differs."""


@frozen
class Report:
    """What a failure report says."""

    verdict: str
    property_id: str
    statement: str
    rule: str | None
    """Number of the rule that decides what differs first."""
    engine: Capabilities | None
    config: Config
    policy: Policy
    actions: tuple[Action, ...]
    expected: str
    observed: str
    why: str
    replay: str | None
    """The command that does it again."""
    similar: tuple[PublicReport, ...] = ()
    """Public reports of what looks alike, the most specific first."""
    adoptions: tuple[Adoption, ...] = ()
    """Known deviations on the way, after which the engine's state was adopted."""

    @property
    def lines(self) -> tuple[str, ...]:
        """The report, line by line."""
        engine = "none: the specification alone"
        if self.engine is not None:
            engine = (
                f"{self.engine.name} {self.engine.version}, level {self.engine.level.name.lower()}"
            )
        count = len(self.actions)
        return (
            f"verdict    {self.verdict}",
            f"property   {self.property_id}: {self.statement}",
            f"rule       {self._told_rule}",
            f"engine     {engine}",
            f"profile    {tell_policy(self.policy)}",
            f"sizes      {tell_config(self.config)}",
            f"program    {count} action{'' if count == 1 else 's'}",
            *(f"  {line}" for line in tell_program(self.actions)),
            *(
                f"adopted    the engine's state after {a.number + 1}, by {a.id}"
                for a in self.adoptions
            ),
            f"expected   {self.expected}",
            f"observed   {self.observed}",
            f"why        {self.why}",
            *(f"similar    {report}" for report in self.similar or ("none that is known",)),
            f"replay     {self.replay or 'not recorded'}",
        )

    @property
    def _told_rule(self) -> str:
        if self.rule is None:
            diverged = self.property_id in (LOCKSTEP, *REFINES)
            return "not known" if diverged else "none alone: see the property"
        statement = next((rule.statement for rule in RULES if rule.number == self.rule), "")
        return f"{self.rule} (by the field that differs first): {statement}"


def deciding(field: str, action: Action) -> str | None:
    """The number of the rule that decides a field."""
    kind = type(action).__name__
    for pattern, after, number in DECIDED_BY:
        if fnmatchcase(field, pattern) and fnmatchcase(kind, after):
            return number
    return None


def suspected(difference: Difference) -> str | None:
    """The property that a difference speaks of, where the two sides say which: a queue of the same
    blocks is out of order, one of others has lost or gained some."""
    mine, theirs = difference.expected, difference.observed
    if difference.field != "free queue" or not isinstance(mine, tuple | list):
        return None
    same = isinstance(theirs, tuple | list) and Counter(mine) == Counter(theirs)
    return "LRU-3" if same else "OWN-1"


def of_divergence(
    parted: Parted, engine: Capabilities, verdict: str = "diverges", replay: str | None = None
) -> Report:
    """The report on an engine that diverged."""
    divergence = parted.divergence
    shown, more = divergence.differences[0], len(divergence.differences) - 1
    first = narrowed(shown)
    property_id = first.field[:5] if first.field[:5] in REFINES else LOCKSTEP
    expected, observed = sides(first)
    others = f", and in {more} other field{'s' if more > 1 else ''}" if more else ""
    told, rule = tell_action(divergence.action), deciding(first.field, divergence.action)
    marks = marks_on(parted.machine, parted.actions)
    alike = Clues(suspected(shown), shown.field, rule, marks)
    if first.field == ANSWER:
        why = f"At the last action ({told}) the engine raised an error where none belongs."
    else:
        why = f"After the last action ({told}) the engine differs in {first.field}{others}."
    return Report(
        verdict,
        property_id,
        REFINES.get(property_id, STATEMENT),
        rule,
        engine,
        parted.machine.config,
        parted.machine.policy,
        parted.actions,
        f"{first.field}: {expected}",
        f"{first.field}: {observed}",
        why,
        replay,
        similar(alike, known_reports()),
        parted.adoptions,
    )


def of_fall(
    property_id: str,
    statement: str,
    what: str,
    config: Config,
    policy: Policy,
    actions: tuple[Action, ...],
    engine: Capabilities | None = None,
    replay: str | None = None,
) -> Report:
    """The report on a property of the specification that fell."""
    alike = Clues(property_id, marks=marks_on(Machine(config, policy), actions))
    last = f" ({tell_action(actions[-1])})" if actions else ""
    return Report(
        "falls",
        property_id,
        statement,
        None,
        engine,
        config,
        policy,
        actions,
        "the property holds",
        what,
        f"After the last action{last} the specification does not keep {property_id}.",
        replay,
        similar(alike, known_reports()),
    )


# --- two sides ------------------------------------------------------------------------------


def narrowed(difference: Difference) -> Difference:
    """The first part in which two values differ, as deep as both have the same parts."""
    name, mine, theirs = difference.field, difference.expected, difference.observed
    while True:
        parts: list[tuple[str, object, object]] = []
        kind = type(mine)
        if attrs.has(kind) and kind is type(theirs):
            names = attrs.fields_dict(kind)
            parts = [(f".{part}", getattr(mine, part), getattr(theirs, part)) for part in names]
        elif isinstance(mine, tuple) and isinstance(theirs, tuple) and _alike(mine, theirs):
            pairs = enumerate(zip(mine, theirs, strict=True))
            parts = [(f"[{at}]", a, b) for at, (a, b) in pairs]
        differ = [part for part in parts if part[1] != part[2]]
        if not differ:
            return Difference(name, mine, theirs)
        name, mine, theirs = name + differ[0][0], differ[0][1], differ[0][2]


def _alike(mine: tuple[object, ...], theirs: tuple[object, ...]) -> bool:
    """As many values with parts on both sides."""
    return len(mine) == len(theirs) and any(attrs.has(type(value)) for value in mine)


def sides(difference: Difference) -> tuple[str, str]:
    """What was expected and what was observed; where both are long, from where they differ."""
    mine, theirs = difference.expected, difference.observed
    if isinstance(mine, tuple | list) and isinstance(theirs, tuple | list):
        at = next(
            (i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b),
            min(len(mine), len(theirs)),
        )
        return _around(mine, at), _around(theirs, at)
    return _short(_word(mine)), _short(_word(theirs))


def _around(values: tuple[object, ...] | list[object], at: int) -> str:
    """A sequence, whole or around a place."""
    whole = "(" + ", ".join(map(_word, values)) + ")"
    if len(whole) <= MOST // 2:
        return whole
    start, stop = max(at - AROUND, 0), at + AROUND + 1
    shown = ", ".join(map(_word, values[start:stop]))
    before, after = "…, " if start else "", ", …" if stop < len(values) else ""
    return _short(f"({before}{shown}{after}), from place {start} of {len(values)}")


def _word(value: object) -> str:
    return value if isinstance(value, str) else repr(value)


def _short(text: str) -> str:
    return text if len(text) <= MOST else f"{text[: MOST - 1]}…"
