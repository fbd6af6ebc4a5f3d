"""The command line: `servecheck COMMAND …`.

Theory of operation. A command is one module in this folder, named as it is typed, whose function
`command` returns how it ended (`terminal.Exit`) and raises what stops it. Registering it is one
line in COMMANDS. All modules are imported to show the help, so a command imports what it works
with inside its function; at the top stand only typer, `terminal`, `options` and the standard
library. `terminal.settled` turns whatever happens into an exit code.

    main ──▶ settled(typer ──▶ settled(command)) ──▶ 0 holds, 1 falls, 2 bad input, 3 undetermined
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module

from servecheck.cli import terminal

COMMANDS = (
    "replay",
    "miniature",
    "fuzz",
    "check",
    "render",
    "shrink",
    "init",
    "demo",
    "arithmetic",
    "compare",
    "speculation",
    "zoo",
)


def main(args: Sequence[str] | None = None) -> int:
    """The console script. `args` are those of the process unless given; returns the exit code."""
    given = list(sys.argv[1:] if args is None else args)
    terminal.prepare()
    with terminal.ending_when_asked():
        return terminal.settled(lambda: _run(given or ["--help"]))


def _run(args: list[str]) -> int:
    _check_empty(args)
    import typer

    def version(asked: bool) -> None:
        if asked:
            terminal.say(f"servecheck {_version()}")
            raise typer.Exit()

    def servecheck(
        version: bool = typer.Option(
            False, "--version", callback=version, is_eager=True, help="Show the version and exit."
        ),
    ) -> None:
        """An executable specification of a serving loop for language models, and what can be
        checked with it.

        Exit codes: 0 it holds; 1 a property fell, or two sides disagree; 2 bad input or usage;
        3 undetermined; 130 interrupted.
        """

    app = typer.Typer(
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help: it needs no rich, and fits any width
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(servecheck)
    for name in COMMANDS:
        app.command(name)(_settling(import_module(f"servecheck.cli.{name}").command))
    # Not `app(...)`: that would install an excepthook of typer's own.
    code: int = typer.main.get_command(app).main(
        args, prog_name="servecheck", standalone_mode=False
    )
    if code == terminal.Exit.INTERRUPTED and not _began:
        raise KeyboardInterrupt  # before there was a command to tell it; typer says nothing
    return code


_began: list[str] = []
"""The commands that have begun, in this process."""


def _check_empty(args: Sequence[str]) -> None:
    """No argument may be empty: as a rule a variable was, and as a path it is the current folder.

    Raises:
        BadInput: one is.
    """
    for before, given in zip(("servecheck", *args), args, strict=False):
        option, equals, value = given.partition("=")
        if not given or (option.startswith("--") and equals and not value):
            after = option if given else before
            raise terminal.BadInput(
                f"what stands after {terminal.brief(after)} is empty; give it a value, or leave "
                "it out"
            )


def _settling(command: Callable[..., int]) -> Callable[..., int]:
    """`command`, settled before typer sees how it ended: typer has its own way with Ctrl-C and
    closed pipes."""

    @wraps(command)
    def settling(**options: object) -> int:
        from servecheck.processes import insisting

        _began.append(command.__module__)
        with insisting():
            return terminal.settled(lambda: command(**options))

    return settling


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("servecheck")
    except PackageNotFoundError:
        return "(not installed)"
