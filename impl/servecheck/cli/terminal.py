"""What all commands share with the terminal: lines, JSON, errors, exit codes.

Theory of operation. A command writes to standard output through `say` and `say_json` only, and
says how it ended by an `Exit`; whatever stops it is an exception. `settled` runs it and turns
every exception into one line on standard error and an exit code, so no command handles errors
for itself, and none can end in a traceback because a pipe was closed or a disk is full.

Output is plain text. Colour is added on a terminal alone, by rich, which is imported only then,
and is given text that it never interprets. What comes from files or arguments goes through
`escaped` first: it can neither move the cursor nor end a line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from io import TextIOWrapper
from shutil import get_terminal_size
from threading import current_thread, main_thread
from time import monotonic
from types import FrameType
from typing import TextIO

Part = str | tuple[str, str]
"""A piece of a line, alone or with its style."""

PATIENCE = 0.5
"""Seconds of work after which progress is shown."""

MOST = 1000
"""Characters of a text that is shown in brief."""


class Exit(IntEnum):
    """How a command ended."""

    HOLDS = 0
    FALLS = 1
    """A property fell, or two sides disagree."""
    BAD_INPUT = 2
    """Also: wrong usage, or output that cannot be written."""
    UNDETERMINED = 3
    INTERNAL = 70
    """A fault of servecheck itself. Not 1: it says nothing about what was checked."""
    INTERRUPTED = 130
    CLOSED_PIPE = 141


class BadInput(Exception):
    """What was asked for cannot be done; the message says why and what to do, in one line."""


class OutputError(Exception):
    """Standard output cannot be written. Not an OSError, which typer would handle its own way."""


# --- writing ---------------------------------------------------------------------------------


def escaped(text: str) -> str:
    """`text` on one line, with all that does not print (controls, bidi marks) written out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def brief(text: str) -> str:
    """`text` escaped, and cut where it is long: who names a request may do so at any length."""
    shown = escaped(text[: MOST + 1])
    return shown if len(shown) <= MOST else f"{shown[: MOST - 1]}…"


def say(*parts: Part) -> None:
    """One line to standard output."""
    pieces = [(part, "") if isinstance(part, str) else part for part in parts]
    with _writing() as out:
        if _coloured(out):
            from rich.console import Console
            from rich.text import Text

            # soft_wrap: the terminal wraps as it likes, and nothing is cut.
            Console(file=out).print(Text.assemble(*pieces), soft_wrap=True)
        else:
            out.write("".join(text for text, _ in pieces) + "\n")
        # A reader of the pipe sees each line when it is said.
        out.flush()


def say_json(value: object) -> None:
    """One JSON object to standard output, on one line of ASCII."""
    text = json.dumps(value, allow_nan=False)
    with _writing() as out:
        out.write(text + "\n")
        out.flush()


def complain(message: str) -> None:
    """One line to standard error; if that cannot be written either, none."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(escaped(message), file=sys.stderr, flush=True)


def width() -> int:
    """Columns of the terminal; 80 in a pipe."""
    return get_terminal_size((80, 24)).columns


@contextmanager
def _writing() -> Iterator[TextIO]:
    if sys.stdout is None:
        raise OutputError("it is closed")
    try:
        yield sys.stdout
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(error.strerror or str(error)) from None


def _coloured(out: TextIO) -> bool:
    """Plain unless a person is looking, and does not mind (https://no-color.org)."""
    return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows a bar on a terminal once the work takes longer than `PATIENCE`; call with what is
    done of `total`. In a pipe there is none."""
    if sys.stderr is None or not _coloured(sys.stderr):
        yield lambda _: None
        return
    from contextlib import ExitStack

    with ExitStack() as shown:
        since, bar = monotonic(), None

        def show(done: int) -> None:
            nonlocal bar
            if bar is None:
                if monotonic() - since < PATIENCE:
                    return
                from rich.console import Console
                from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

                bar = shown.enter_context(
                    Progress(
                        TextColumn("{task.description}", markup=False),
                        BarColumn(),
                        MofNCompleteColumn(),
                        console=Console(stderr=True),
                        transient=True,
                    )
                )
                bar.add_task(escaped(label), total=total)
            bar.update(bar.task_ids[0], completed=done)

        yield show


# --- ending ----------------------------------------------------------------------------------


def settled(run: Callable[[], int]) -> int:
    """The exit code of `run`. Nothing but a fault of servecheck itself shows a traceback."""
    try:
        code = run()
        if sys.stdout is not None:
            with _writing() as out:
                out.flush()
        return code
    except KeyboardInterrupt as interrupt:
        complain(" ".join(("interrupted", *map(str, interrupt.args))))
        return Exit.INTERRUPTED
    except SystemExit as end:
        # typer ends so after a request of the shell for completions; it and rich also do, with 1,
        # when they meet a closed pipe first.
        if not end.code:
            return Exit.HOLDS
        _give_up_output()
        return Exit.CLOSED_PIPE
    except BrokenPipeError:
        _give_up_output()
        return Exit.CLOSED_PIPE
    except Exception as error:
        if isinstance(error, OutputError):
            _give_up_output()
        message = explanation(error)
        if message is None:
            import traceback

            traceback.print_exc()
            return Exit.INTERNAL
        complain(f"error: {message}")
        return Exit.BAD_INPUT


def explanation(error: Exception) -> str | None:
    """What to tell of an error that somebody else can mend; None for a fault of servecheck."""
    from servecheck.engines.protocol import EngineError
    from servecheck.explore.errors import ScopeError
    from servecheck.lockstep.register import RegisterError
    from servecheck.recording import RecordingError
    from servecheck.strict import FileError
    from servecheck.view.errors import ViewError
    from servespec.errors import SpecError

    match error:
        case BadInput() | SpecError():
            return str(error)
        case RecordingError() | EngineError() | FileError() | RegisterError():
            return escaped(str(error))
        case ScopeError() | ViewError():
            return escaped(str(error))
        case OutputError():
            return f"standard output cannot be written: {error}"
        case OSError():
            where = "" if error.filename is None else f"{error.filename}: "
            return f"{where}{error.strerror or error}"
        case MemoryError():
            return "the memory does not suffice; try something smaller"
    # A usage error of typer; its class has moved between releases, its method has not.
    tell = getattr(error, "format_message", None)
    if tell is None:
        return None
    context = getattr(error, "ctx", None)
    command = "servecheck" if context is None else context.command_path
    said = " ".join(str(tell()).split()).rstrip(".")
    return f"{said}; see {command} --help"


def _give_up_output() -> None:
    """What is still in the buffer goes nowhere, or Python would try once more when it exits."""
    with suppress(OSError, ValueError, AttributeError):
        out = sys.stdout.fileno()
        os.dup2(os.open(os.devnull, os.O_WRONLY), out)


def prepare() -> None:
    """Let what the encoding of the terminal cannot show be written out, not fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def ending_when_asked() -> Iterator[None]:
    """Who is asked to end (SIGTERM: `kill`, `timeout`, a machine that shuts down) ends as after
    Ctrl-C, with what is known so far."""
    usual = current_thread() is main_thread()
    if not usual or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _asked_to_end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _asked_to_end(number: int, frame: FrameType | None) -> None:
    from servecheck.processes import press

    press()
