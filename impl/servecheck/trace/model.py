"""What a trace says, as values: a machine, what was done to it, and what it answered.

A trace is evidence that outlives the code that wrote it. So nothing in it depends on how the
specification is built inside: a key is its hash (`recording.digest.content_name`), a state is what
a protocol between engine and checker can show of it (`Observation`), and what stands in a line is
written by value, never as an object to be unpickled.

    Header          which machine: sizes, choices, engine, seed, versions
    Line            one action: number, action, events, digest of the state afterwards
    …
    Verdict         what came of it; absent if the run was cut short

These classes are also the format: `codec` takes their annotations for the table of fields. A field
with a default may be left out by who writes a trace by hand; `TraceWriter` writes all of them.
Actions, sizes, choices and most events are the specification's own classes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from attrs import frozen

from servecheck.strict import FileError
from servespec.actions import Action
from servespec.config import Config
from servespec.events import (
    Admitted,
    CacheCleared,
    Delivered,
    Finished,
    Preempted,
    Refused,
    Scheduled,
    Skipped,
    Submitted,
)
from servespec.machine import Machine
from servespec.policy import Policy

FORMAT: Literal["servecheck-trace"] = "servecheck-trace"
VERSION: Literal[1] = 1
FIRST_LINE = 2
"""The line of the first action; the header is line 1."""


@frozen
class Hex:
    """So many hex digits, in small letters."""

    digits: int


Key = Annotated[str, Hex(64)]
"""Names the content of a full block."""

Digest = Annotated[str, Hex(16)]
"""The first 64 bits of the SHA-256 of an observation as canonical JSON."""

Blocks = tuple[int, ...]
Tokens = tuple[int, ...]


class TraceError(FileError):
    """A trace that cannot be read or written."""


# --- first line ----------------------------------------------------------------------------


@frozen
class Packages:
    """Versions of what wrote the trace."""

    servecheck: str
    python: str


@frozen
class Header:
    """The machine that was moved, and who moved it."""

    format: Literal["servecheck-trace"]
    version: Literal[1]
    engine: str
    """Who answered: `spec` is the specification itself."""
    profile: str | None
    """The policy's name, if it has one. What counts is `policy`."""
    seed: int | None
    packages: Packages
    config: Config
    policy: Policy


# --- events --------------------------------------------------------------------------------


@frozen
class BlockStored:
    """The specification's event of this name, its keys by hash."""

    block: int
    key: Key
    parent: Key | None


@frozen
class BlockRemoved:
    """The specification's event of this name, its key by hash."""

    block: int
    key: Key


TracedEvent = (
    Submitted
    | Admitted
    | Scheduled
    | Skipped
    | Preempted
    | BlockStored
    | BlockRemoved
    | CacheCleared
    | Delivered
    | Finished
    | Refused
)
"""An event as a trace shows it."""


# --- states --------------------------------------------------------------------------------


@frozen
class SeenRequest:
    id: str
    computed: int
    """C"""
    length: int
    """T"""
    table: Blocks
    published: int
    drafts: Tokens
    output: Tokens


@frozen
class SeenEntry:
    """One request in a plan in flight."""

    id: str
    start: int
    tokens: Tokens
    drafts: Tokens
    table: Blocks
    new_blocks: int
    yields: bool
    admitted: bool
    was_prefilling: bool
    cancelled: bool


@frozen
class SeenPlan:
    entries: tuple[SeenEntry, ...]
    deferred: tuple[Blocks, ...]


@frozen
class SeenCopies:
    """The blocks that answer to a key, oldest first."""

    key: Key
    blocks: Blocks


@frozen
class Observation:
    """A state, as a protocol shows it. No ghost is in it, and nothing that only the specification
    keeps."""

    free: Blocks
    """The free queue, head first."""
    ref_counts: Blocks
    keys: tuple[Key | None, ...]
    index: tuple[SeenCopies, ...]
    """By key."""
    requests: tuple[SeenRequest, ...]
    """Who runs, then who waits."""
    running: tuple[str, ...]
    waiting: tuple[str, ...]
    in_flight: tuple[SeenPlan, ...]


# --- the other lines -----------------------------------------------------------------------


@frozen
class Line:
    """One action, and what came of it."""

    n: int
    """From 0."""
    action: Action
    events: tuple[TracedEvent, ...]
    digest: Digest
    """Of the state afterwards."""
    state: Observation | None = None
    """A snapshot of it, once in a while."""


@frozen
class Verdict:
    """What came of the run."""

    verdict: Literal["holds", "falls", "undetermined"]
    property: str | None = None
    """Which property fell; None unless one did."""
    what: str | None = None
    """What is wrong; or the budget that was spent; or why nothing can be said."""


@frozen
class Trace:
    """All of a file."""

    path: Path
    header: Header
    lines: tuple[Line, ...]
    verdict: Verdict | None
    """None: the run was cut short, or reached none."""

    @property
    def machine(self) -> Machine:
        """The specification with the recorded sizes and choices."""
        return Machine(self.header.config, self.header.policy)

    @property
    def actions(self) -> tuple[Action, ...]:
        return tuple(line.action for line in self.lines)
