"""What is made from the code and committed: `spec/README.md`, traces' schema, zoo and stories.

Nothing about a rule or a property is written twice. The statement of a rule is the docstring of
the function that is the rule; the statement of a property, that of its check; whether a property
holds under a profile follows from the conditions under which the registry says that it falls. The
statement of a theorem is the docstring of the function that states it, in any module of
`servespec.theory`: all of them are found there, none is named here.
`python -m servecheck.document` writes the files, `--check` only says which are stale.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import takewhile
from os import getpid
from pathlib import Path
from pkgutil import iter_modules

import servespec
from servecheck.cli.terminal import BadInput, Exit, escaped, prepare, say, settled
from servecheck.trace.schema import schema_text
from servespec.config import Config
from servespec.policy import PROFILES, Policy, prioritised
from servespec.properties import PROPERTIES, Falls, Property
from servespec.rules import RULES, Rule, statement_of
from servespec.theory import THEOREMS, Theorem
from servespec.theory import __path__ as theory_path

READING_ORDER = (
    "chain",
    "config",
    "policy",
    "events",
    "pool",
    "cache",
    "actions",
    "request",
    "plan",
    "moves",
    "scheduler",
    "machine",
    "open",
)
"""Modules of the specification, each built on those before it."""

INTRODUCTION = """\
# The specification

What a serving loop for language models must do, as a pure state machine: frozen values and
functions from a state and an action to the next state and its events. It needs the standard
library and attrs. This file is made from the code by `make docs`; do not edit it.

## How to read it

Read the modules in this order. A reader who wants paged memory with prefix sharing only can stop
after `cache`.

{modules}

A *rule* says what happens; it is one function, marked with its number. Numbers 1 to 37 are those of
vLLM 0.33.0's scheduler, whose recordings they reproduce (`traces/vllm-0.33.0/`; what no recording
shows of a rule, a story in `tests/test_rules.py` holds); letters are rules of other
policies and of the machine itself. A *choice* is a rule that engines make differently: it is one
axis of `servespec.policy.Policy`, and of the machine only `policy.py` looks at an axis. A
*property* says what must be true of every state (S), every transition (T) or every history (M); the
properties read the axes a second time, since a choice that is shared cannot be checked by itself.

Words. T is the number of tokens of a request's *text*, prompt and output; C of them are
*computed*, their KV is in the blocks of its *table*; bs is the block size, γ the number of *drafts*
a step. A *full block* has a *key*, which names its content; a *hit* is a block found by its key.
The *hit cap* keeps a look-up from covering a whole text, *look-ahead* slots are taken beyond what
is scheduled, the *watermark* is what an admission must leave free, the *null block* is block 0
where it is kept out. A *ghost* is state that only properties look at.

Type-check it, or your own code against it, with `mypy --strict -p servespec`.

## Rules

| rule | statement | function | mirrors |
| --- | --- | --- | --- |
{rules}

## Properties

| property | kind | statement | {profiles} |
| --- | --- | --- | {dashes} |
{properties}

## Where properties fall

A real engine may break a property. Then that is knowledge: each condition below has a committed
trace in `traces/falls/` that must go on falling. What is told under *why* must have happened in the
run: until then a fall is none that is known. (LIV-1, that a request which fits alone is
served, is about endless runs and so in no table here; `traces/falls/` has the loops on which it
falls.)

| property | when | why | trace |
| --- | --- | --- | --- |
{falls}

## Theory

What is about two runs, many, or none is no property of a run but a *theorem*: an order between two
runs (O), a relation between runs that must look alike (H), exact arithmetic (X). The modules, in
`theory/`, build on those above, and none of those on them.

{theory}

| theorem | kind | statement | function |
| --- | --- | --- | --- |
{theorems}
"""

REGISTER = "register"
"""The one module of the theory that states nothing."""


def modules() -> Iterator[str]:
    """One line a module: its name and the first sentence of its docstring."""
    for name in READING_ORDER:
        said = statement_of(import_module(f"servespec.{name}"))
        yield f"1. `{name}.py` — {said}"


def theory() -> Iterator[str]:
    """One line a module of the theory, in order of their names. Importing them fills THEOREMS."""
    for name in sorted(found.name for found in iter_modules(theory_path)):
        said = statement_of(import_module(f"servespec.theory.{name}"))
        if name != REGISTER:
            yield f"- `theory/{name}.py` — {said}"


def theorem_rows() -> Iterator[str]:
    for t in sorted(THEOREMS.values(), key=_natural):
        place = t.function.removeprefix("servespec.")
        yield f"| {t.id} | {t.kind.name} | {_cell(t.statement)} | `{place}` |"


def _natural(t: Theorem) -> tuple[str, int, str]:
    """SPE-2 before SPE-10."""
    family, _, number = t.id.partition("-")
    digits = "".join(takewhile(str.isdigit, number))
    return family, int(digits or 0), number


def rule_rows() -> Iterator[str]:
    """One row a function: numbers first, in order; then letters."""
    of: dict[str, list[Rule]] = {}
    for rule in sorted(RULES, key=_order):
        of.setdefault(rule.function, []).append(rule)
    for place, rules in of.items():
        numbers = ", ".join(rule.number for rule in rules)
        name = place.removeprefix("servespec.")
        yield f"| {numbers} | {_cell(rules[0].statement)} | `{name}` | {_cell(rules[0].engine)} |"


def _order(rule: Rule) -> tuple[bool, int, str]:
    number = rule.number
    return not number.isdigit(), int(number) if number.isdigit() else 0, number


def property_rows() -> Iterator[str]:
    for p in PROPERTIES.values():
        cells = " | ".join(standing(p, policy) for policy in PROFILES.values())
        yield f"| {p.id} | {p.kind.name} | {_cell(p.statement)} | {cells} |"


def fall_rows() -> Iterator[str]:
    for p in PROPERTIES.values():
        for f in p.falls:
            yield f"| {p.id} | {_cell(f.when)} | {_cell(f.why)} | `{f.trace}` |"


def standing(p: Property, policy: Policy) -> str:
    """*holds*, *falls*, or *holds (falls when …)* for the variants of a profile: by priority, with
    drafts."""
    plain, drafts = _sizes(0), _sizes(1)
    if p.expected(plain, policy) is not None:
        return "**falls**"
    variants = ((drafts, policy), (plain, prioritised(policy)))
    found = (p.expected(config, variant) for config, variant in variants)
    when: dict[str, Falls] = {f.when: f for f in found if f is not None}
    return "holds" if not when else f"holds (falls when {'; or '.join(map(_cell, when))})"


def _sizes(gamma: int) -> Config:
    """Any sizes with γ drafts."""
    return Config(
        num_blocks=8,
        block_size=2,
        max_model_len=8,
        max_num_batched_tokens=8,
        max_num_seqs=2,
        num_speculative_tokens=gamma,
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def document() -> str:
    """The whole of spec/README.md."""
    said = "\n".join(theory())  # first: it fills THEOREMS
    return INTRODUCTION.format(
        modules="\n".join(modules()),
        rules="\n".join(rule_rows()),
        profiles=" | ".join(PROFILES),
        dashes=" | ".join("---" for _ in PROFILES),
        properties="\n".join(property_rows()),
        falls="\n".join(fall_rows()),
        theory=said,
        theorems="\n".join(theorem_rows()),
    )


def documents() -> dict[Path, str]:
    """Every file that is made, by where it stands in a checkout."""
    from servecheck.zoo.document import document as zoo
    from servecheck.zoo.stories import StoryError
    from servecheck.zoo.storybook import pages as stories

    spec = Path(servespec.__file__).resolve().parents[1]
    try:
        told = stories(spec.parent)
    except StoryError as error:
        raise BadInput(f"{escaped(str(error))}; mend the trace, or the story") from None
    return {
        spec / "README.md": document(),
        spec.parent / "traces" / "trace.schema.json": schema_text(),
        spec.parent / "docs" / "zoo.md": zoo(),
        **told,
    }


USAGE = "python -m servecheck.document [--check]"


def main(arguments: list[str]) -> int:
    """Write the files; or, with `--check`, say which are stale.

    Raises:
        BadInput: there are other arguments, or a story is not true.
        FileError: what they are made from cannot be read.
        OSError: one cannot be read or written; it is as it was.
    """
    if arguments in (["-h"], ["--help"]):
        say(f"Usage: {USAGE}")
        return Exit.HOLDS
    if arguments not in ([], ["--check"]):
        raise BadInput(f"no such argument as {escaped(' '.join(arguments))}: {USAGE}")
    stale = False
    for there, made in documents().items():
        name = f"{there.parent.name}/{there.name}"
        if not arguments:
            _write(there, made.encode())
            say(f"wrote {escaped(str(there))}")
        elif there.exists() and there.read_bytes() == made.encode():
            say(f"{name} is true")
        else:
            stale = True
            say(f"{name} is stale: run `make docs`")
    return Exit.FALLS if stale else Exit.HOLDS


def _write(there: Path, made: bytes) -> None:
    """Whole or not at all: on a full disk the old page stays."""
    half = there.with_name(f".{there.name}.{getpid()}")
    there.parent.mkdir(parents=True, exist_ok=True)
    try:
        half.write_bytes(made)
        half.replace(there)
    finally:
        half.unlink(missing_ok=True)


if __name__ == "__main__":
    prepare()
    sys.exit(settled(lambda: main(sys.argv[1:])))
