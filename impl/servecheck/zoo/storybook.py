"""docs/stories.md and its pictures, made from the stories, their traces and the kill matrix.

Theory of operation. A section has a fixed form: what users saw, the fault, the trace with what the
two sides say at its end, the picture, the property, who finds it. Prose comes from `stories.toml`,
statements from the register of properties, figures from `results.jsonl`, all else from running the
entry (`stories.told`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from servecheck.lockstep.report import narrowed, sides
from servecheck.tell import tell_action, tell_config, tell_policy, tell_program
from servecheck.view.beside import beside
from servecheck.view.marks import Drawing
from servecheck.view.svg import svg
from servecheck.zoo import ENTRIES
from servecheck.zoo.document import RESULTS, pairs_of
from servecheck.zoo.rows import Row
from servecheck.zoo.stories import Told, read_stories, told
from servespec.properties import PROPERTIES

MOST = 3
"""Differences that are told one by one."""
LONGEST = 120
"""Characters of what is told of how a property falls."""
NO_KEY = "no key on blocks"
"""What `lockstep.compare` expects where a block has a key too much."""

PAGE = """# Ten faults, and what shows them

Made by `python -m servecheck.document`. Each of these faults was in a real engine. Here it is
planted in the fast engine as a small change of one part (the [zoo](zoo.md) has {entries} of them,
and says which check finds which), and a few actions are enough to show it.

* The *trace* is what was done, an action a line. A token is a number, a block has {size} of them;
  `≤ 2 more` is the most output asked for, `alice → 4` what was sampled for alice, `in (legal, -)`
  an adapter and a salt. The specification goes along, and below the last action stands what the two
  say of it. `servecheck replay TRACE --engine zoo:ENTRY` does it again with the fault,
  `--engine fast` without it, and `servecheck render TRACE --step N` draws any moment.
* The *picture* has the specification's state on the left and the engine's on the right; what
  differs is ringed in red. A request has T tokens, C of them computed or in flight.
* The *property* is asked of the engine alone, with no specification beside it. Its number stands in
  [the specification](../spec/README.md#properties).

{contents}
{stories}"""

STORY = """
## {number}. {title}

**What users saw.** {seen}

**The fault.** {fault} (`{entry}` in [`{subject}.py`](../impl/servecheck/zoo/{subject}.py))

**The trace**, [`{entry}.jsonl`](../traces/stories/{entry}.jsonl), under {policy}; {config}:

```text
{trace}
```

![{alt}](stories/{entry}.svg)

**The property, {property_id}.** {property}

**Who finds it.** {found}
"""


def pages(root: Path) -> dict[Path, str]:
    """The page and its pictures, by where they stand in a checkout.

    Raises:
        StoryError: a trace does not show what its story tells.
    """
    stories = [told(story, root / "traces" / "stories") for story in read_stories()]
    docs, rows = root / "docs", pairs_of(RESULTS)
    (size,) = {t.trace.machine.config.block_size for t in stories}
    sections = (section(n, t, rows[t.story.entry.id]) for n, t in enumerate(stories, 1))
    page = PAGE.format(
        entries=len(ENTRIES),
        size=size,
        contents="\n".join(_contents(stories)),
        stories="".join(sections),
    )
    pictures = {docs / "stories" / f"{t.story.entry.id}.svg": svg(drawn(t)) for t in stories}
    return {docs / "stories.md": page, **pictures}


def _contents(stories: Sequence[Told]) -> Iterator[str]:
    for number, t in enumerate(stories, 1):
        title = t.story.title
        anchor = re.sub(r"[^\w -]", "", f"{number}. {title}".lower()).replace(" ", "-")
        about = f"*{t.story.entry.root_cause}*, {t.story.property_id}"
        yield f"{number}. [{title}](#{anchor}) ({about})"


def section(number: int, t: Told, rows: Sequence[Row]) -> str:
    """One story."""
    entry, machine = t.story.entry, t.trace.machine
    return STORY.format(
        number=number,
        title=t.story.title,
        seen=t.story.seen,
        fault=entry.title,
        entry=entry.id,
        subject=entry.subject,
        policy=f"`{tell_policy(machine.policy)}`",
        config=f"`{tell_config(machine.config)}`",
        trace="\n".join(_trace(t)),
        alt=_alt(t),
        property_id=t.story.property_id,
        property=_property(t),
        found=found_by(rows, len(t.trace.actions)),
    )


def _trace(t: Told) -> Iterator[str]:
    """The program, and what the two sides say after it."""
    yield from tell_program(t.trace.actions)
    for field, mine, theirs in differences(t):
        yield f"     {field}"
        yield f"       the specification   {mine}"
        yield f"       the engine          {theirs}"
    more = len(t.parted.divergence.differences) - MOST
    if more > 0:
        yield f"     and in {more} more field{'s' if more > 1 else ''}"


def differences(t: Told) -> Iterator[tuple[str, str, str]]:
    """The first fields in which the two sides differ, and what each says."""
    for difference in t.parted.divergence.differences[:MOST]:
        first = narrowed(difference)
        mine, theirs = sides(first)
        if first.expected == NO_KEY:
            mine, theirs = f"no key on blocks {theirs}", f"a key on blocks {theirs}"
        yield first.field, mine.replace(",)", ")"), theirs.replace(",)", ")")


def _alt(t: Told) -> str:
    fields = ", ".join(field for field, _, _ in differences(t))
    sides = f"{t.said.caption} and {t.held.caption.lower()}"
    return f"{sides} after action {len(t.trace.actions)}; they differ in {fields}"


def _property(t: Told) -> str:
    """Its statement, how it falls, and why."""
    fell, statement = t.sees, PROPERTIES[t.story.property_id].statement
    what = f": *{fell.what}*" if len(fell.what) <= LONGEST else ""
    how = f"It falls after action {fell.number}{what}. {t.story.why} {_also(t)}"
    return f"{statement}\n\n{how}".rstrip()


def _also(t: Told) -> str:
    """What else falls."""
    if t.problem is not None:
        return "A step like that has no form of which anything could hold, so all properties fall."
    others = [name for name in t.fallen if name != t.story.property_id]
    return f"({', '.join(others)} {'falls' if len(others) == 1 else 'fall'} too.)" if others else ""


def found_by(rows: Sequence[Row], actions: int) -> str:
    """Which checks of the zoo find an entry, and after how much with the first seed; its story has
    so many actions."""
    row, ways = rows[0], list[str]()
    if row.spec is not None:
        ways.append(f"fuzzing beside the specification after {_counted(row.spec.steps, 'step')}")
    if row.properties is not None:
        fell = row.properties
        ways.append(f"walks with the properties alone after {fell.steps:,} ({fell.by} first)")
    if row.golden is not None:
        within = _counted(row.golden.steps, "step")
        ways.append(f"what was recorded, `{row.golden.by}`, within {within}")
    told = "; ".join(ways) or f"none of the checks: {row.why}"
    known = min([actions, *(mine.shortest for mine in rows if mine.shortest is not None)])
    return f"{told[0].upper()}{told[1:]}. The shortest program known has {known} actions."


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def drawn(t: Told) -> Drawing:
    """The picture of both states after the last action."""
    lines = [f"{field}: {mine} is due, {theirs} found" for field, mine, theirs in differences(t)]
    number = len(t.trace.actions)
    doing = f"after action {number}: {tell_action(t.trace.actions[-1])}"
    return beside(t.story.title, doing, t.said, t.held, lines)
