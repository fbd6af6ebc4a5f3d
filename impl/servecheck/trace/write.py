"""Writes a trace as it happens, so that a crash leaves what was known.

Theory of operation. Each line is handed to the operating system whole, before the next action is
made, so a process that dies leaves whole lines and `read_trace` reads them: a trace without a
verdict. Where a line cannot be written whole (the disk is full), the part that was is cut off
again, the file is closed and a `TraceError` says so.

    with TraceWriter(path, machine, seed=7) as trace:
        moved = machine.apply(state, action)
        trace.action(action, moved)
        trace.verdict(Verdict("falls", "CON-1", "position 1 of r0 …"))
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from io import FileIO
from os import getpid
from pathlib import Path

from attrs import define, evolve, field

from servecheck.strict import Refused
from servecheck.trace.codec import canonical, encode
from servecheck.trace.model import FORMAT, VERSION, Header, Line, Packages, TraceError, Verdict
from servecheck.trace.observe import digest_of, observe, traced
from servespec.actions import Action
from servespec.errors import SpecError
from servespec.machine import Machine, Transition
from servespec.policy import name_of

SNAPSHOT_EVERY = 50
"""Actions from one snapshot to the next."""

MAKE_ROOM = "free some space there, or name another file"


def packages() -> Packages:
    """What runs here."""
    try:
        mine = version("servecheck")
    except PackageNotFoundError:
        mine = "(not installed)"
    return Packages(mine, platform.python_version())


@define
class TraceWriter(AbstractContextManager["TraceWriter"]):
    """A trace under way. Making one begins the file anew.

    Raises:
        TraceError: from making it and from each of its methods, if the file cannot be written,
            or a line not as JSON.
    """

    path: Path
    machine: Machine
    engine: str = "spec"
    seed: int | None = None
    snapshot_every: int = SNAPSHOT_EVERY
    _file: FileIO = field(init=False)
    _whole: int = field(init=False, default=0)
    """Bytes of whole lines."""
    _lines: int = field(init=False, default=0)
    _over: bool = field(init=False, default=False)

    def __attrs_post_init__(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = FileIO(self.path, "wb")
        except (OSError, ValueError) as error:
            raise self._failed(error) from None
        policy = self.machine.policy
        self._put(
            Header(
                FORMAT,
                VERSION,
                self.engine,
                name_of(policy),
                self.seed,
                packages(),
                self.machine.config,
                policy,
            )
        )

    def action(self, action: Action, moved: Transition) -> None:
        """The next action, and what came of it."""
        n = self._lines - 1
        try:
            seen = observe(moved.state)
            line = Line(n, action, tuple(map(traced, moved.events)), digest_of(seen))
        except (Refused, UnicodeEncodeError):
            # The action brought in what cannot be written, and is told first.
            line = Line(n, action, (), "")
        else:
            if (n + 1) % self.snapshot_every == 0:
                line = evolve(line, state=seen)
        self._put(line)

    def verdict(self, verdict: Verdict) -> None:
        """The last line."""
        self._put(verdict)
        self._over = True

    def close(self) -> None:
        """Leave the file as it is."""
        self._over = True
        self._file.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _put(self, line: Header | Line | Verdict) -> None:
        if self._over:
            raise TraceError(
                self.path, self._lines + 1, None, "the trace is finished", "begin another"
            )
        try:
            text = encode(line) + b"\n"
        except Refused as refused:
            self.close()
            raise TraceError(
                self.path, self._lines + 1, refused.where, refused.what, refused.what_to_do
            ) from None
        rest = memoryview(text)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(self._whole)
            with suppress(OSError):
                self.close()
            raise self._failed(error) from None
        self._whole += len(text)
        self._lines += 1

    def _failed(self, error: OSError | ValueError) -> TraceError:
        why = error.strerror if isinstance(error, OSError) else str(error)
        line = self._lines + 1 if self._lines else None
        return TraceError(self.path, line, None, f"cannot be written ({why})", MAKE_ROOM)


def record(
    path: Path,
    machine: Machine,
    actions: Iterable[Action],
    verdict: Verdict | None = None,
    *,
    seed: int | None = None,
    snapshot_every: int = SNAPSHOT_EVERY,
) -> None:
    """Run the specification along actions, and write the trace of it.

    Raises:
        ActionDisabled: a state does not offer its action; the lines before it are written.
        TraceError: the file cannot be written.
    """
    with TraceWriter(path, machine, seed=seed, snapshot_every=snapshot_every) as trace:
        state = machine.initial()
        for action in actions:
            moved = machine.apply(state, action)
            trace.action(action, moved)
            state = moved.state
        if verdict is not None:
            trace.verdict(verdict)


def not_legal(machine: Machine, actions: Iterable[Action]) -> str | None:
    """Why the machine does not carry these actions out to their end, if it does not."""
    state = machine.initial()
    try:
        for action in actions:
            state = machine.apply(state, action).state
    except SpecError as error:
        return str(error)
    return None


def keep(
    folder: Path,
    name: str,
    machine: Machine,
    actions: Sequence[Action],
    verdict: Verdict,
    *,
    seed: int | None = None,
) -> Path:
    """Record a failing run in a file of its own, and return its path.

    The file is NAME-DIGEST.jsonl, by the program that it holds, and appears whole: of two searches
    that write into a folder at once neither takes the other's place, and a program that is found
    again is there once. A program that the machine does not carry out to its end is kept as far
    as it goes.

    Raises:
        TraceError: it cannot be written.
    """
    program = canonical((machine.config, machine.policy, tuple(actions)))
    path = folder / f"{name}-{sha256(program).hexdigest()[:8]}.jsonl"
    replace(path, machine, actions, verdict, seed=seed, partly=True)
    return path


def replace(
    path: Path,
    machine: Machine,
    actions: Iterable[Action],
    verdict: Verdict,
    *,
    seed: int | None = None,
    snapshot_every: int = SNAPSHOT_EVERY,
    partly: bool = False,
) -> None:
    """Record a run in a file that appears whole: until then what was there stays.

    Args:
        partly: a program that the machine does not carry out to its end is kept as far as it goes.

    Raises:
        ActionDisabled: a state does not offer its action, and not `partly`.
        TraceError: it cannot be written.
    """
    half = path.with_name(f".{path.name}.{getpid()}")
    try:
        with suppress(*[SpecError] if partly else []):
            record(half, machine, actions, verdict, seed=seed, snapshot_every=snapshot_every)
        half.replace(path)
    except OSError as error:
        why = error.strerror or str(error)
        raise TraceError(path, None, None, f"cannot be written ({why})", MAKE_ROOM) from None
    except TraceError as error:
        error.file = path
        raise
    finally:
        with suppress(OSError):
            half.unlink(missing_ok=True)
