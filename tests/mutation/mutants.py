"""The mutants of a module: what mutmut's operators make of it, one change each.

Theory of operation. mutmut says how a node of the code may be changed; where it changes, it leaves
out every function with a decorator, and much of `servespec` has one: rules, properties and theorems
are registered by decorators. So its operators are used here, and not its walk. A mutant is the
source of a module with one node changed in a function or a method. What decides when a module is
read (decorators, annotations, class bodies) is left alone. A change of nothing but text (a literal,
a message, what is said with an error, a repr) is counted apart and not run: that is a rule about
the form of the code, `_is_text` and `_only_text` below, and never a choice by hand.

A mutant is named by module, function, the lines before and after, and a number where these occur
more than once. Line numbers are not in the name, so that it outlives changes elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType

import libcst as cst
from attrs import evolve, frozen
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

from tests.mutation.names import Name

SILENT_CALLS = {"len", "isinstance"}
"""Calls that mutmut leaves alone, with all that is in them."""
SILENT_FUNCTIONS = {"__getattribute__", "__setattr__", "__new__"}
TEXT_FUNCTIONS = {"__repr__", "__str__"}
TEXT_AFTER = {"require": 1}
"""Functions whose arguments are text from this one on."""
TYPE_BEFORE = {"cast": 1}
"""Functions whose arguments are types up to this one."""
SIMPLE = (cst.Name, cst.BaseNumber, cst.BaseString)
"""Defaults of parameters that can be changed without a module failing as it is read."""


@frozen
class Mutant:
    """One change of a module."""

    name: Name
    line: int
    """Where its function begins, with its decorators; counted from 1."""
    text_only: bool
    file: str
    source: str
    """Of the whole module, with the change."""

    def code(self) -> CodeType:
        """Of the whole module.

        Raises:
            SyntaxError: the change makes it no Python.
        """
        code: CodeType = compile(self.source, self.file, "exec", dont_inherit=True)
        return code


@frozen
class _Place:
    """Where a node is: the outermost function, and whether all in it is text."""

    function: str
    line: int
    text: bool


def mutants_of(module: str, file: Path) -> tuple[Mutant, ...]:
    """All mutants of a module, in the order of its source."""
    return tuple(_numbered(_Maker(module, file).made()))


def _numbered(mutants: Iterable[Mutant]) -> Iterator[Mutant]:
    seen: Counter[Name] = Counter()
    for mutant in mutants:
        again = seen[mutant.name]
        seen[mutant.name] += 1
        yield evolve(mutant, name=evolve(mutant.name, again=again)) if again else mutant


class _Maker:
    def __init__(self, module: str, file: Path) -> None:
        self.module = module
        self.file = str(file)
        self.source = file.read_text(encoding="utf-8")
        wrapper = MetadataWrapper(cst.parse_module(self.source))
        self.tree = wrapper.module
        self.positions = wrapper.resolve(PositionProvider)
        self.starts = [0]
        """Offset of each line."""
        for line in self.source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def made(self) -> Iterator[Mutant]:
        yield from self._below(self.tree, (), None)

    def _below(
        self, node: cst.CSTNode, names: tuple[str, ...], place: _Place | None
    ) -> Iterator[Mutant]:
        if _is_left_alone(node):
            return
        if isinstance(node, cst.ClassDef):
            names = (*names, node.name.value)
        elif isinstance(node, cst.FunctionDef):
            names = (*names, node.name.value)
            if place is None:
                first = node.decorators[0] if node.decorators else node
                line = self.positions[first].start.line
                place = _Place(".".join(names), line, names[-1] in TEXT_FUNCTIONS)
        elif isinstance(node, cst.Raise | cst.FormattedString) and place is not None:
            place = evolve(place, text=True)
        if place is not None:
            yield from self._here(node, place)
        for child in node.children:
            if isinstance(node, cst.ClassDef) and child is not node.body:
                continue
            yield from self._below(child, names, place)

    def _here(self, node: cst.CSTNode, place: _Place) -> Iterator[Mutant]:
        for kind, operator in mutation_operators:
            if not isinstance(node, kind):
                continue
            for changed in operator(node):
                text = place.text or _only_text(node, changed)
                source, lines = self._replaced(node, changed)
                if lines != ("", ""):
                    name = Name(self.module, place.function, *lines)
                    yield Mutant(name, place.line, text, self.file, source)

    def _replaced(self, node: cst.CSTNode, changed: cst.CSTNode) -> tuple[str, tuple[str, str]]:
        """The source with a node changed, and the lines that differ."""
        span = self.positions.get(node)
        if span is not None:
            first, last = span.start.line - 1, span.end.line - 1
            start = self.starts[first] + span.start.column
            stop = self.starts[last] + span.end.column
            if self.source[start:stop] == self.tree.code_for_node(node):
                new = self.tree.code_for_node(changed)
                here = self.source[self.starts[first] : self.starts[last + 1]]
                there = self.source[self.starts[first] : start] + new
                there += self.source[stop : self.starts[last + 1]]
                whole = self.source[:start] + new + self.source[stop:]
                return whole, changed_lines(here, there)
        other = self.tree.deep_replace(node, changed)
        whole = other.code if isinstance(other, cst.Module) else self.source
        return whole, changed_lines(self.source, whole)


def changed_lines(before: str, after: str) -> tuple[str, str]:
    """The lines that differ between two texts, each side as one line without indentation."""
    old, new = before.splitlines(), after.splitlines()
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    stop = 0
    while stop < min(len(old), len(new)) - start and old[-1 - stop] == new[-1 - stop]:
        stop += 1
    return _one(old[start : len(old) - stop]), _one(new[start : len(new) - stop])


def _one(lines: list[str]) -> str:
    return " ".join(stripped for line in lines if (stripped := line.strip()))


def _is_left_alone(node: cst.CSTNode) -> bool:
    match node:
        case cst.Annotation() | cst.Decorator():
            return True
        case cst.Call(func=cst.Name(value=name)):
            return name in SILENT_CALLS
        case cst.FunctionDef(name=cst.Name(value=name)):
            return name in SILENT_FUNCTIONS
        case cst.Param(default=default):
            return default is not None and not isinstance(default, SIMPLE)
        case _:
            return False


def _is_text(node: cst.CSTNode | None) -> bool:
    """An expression whose value is text, by its form."""
    match node:
        case cst.SimpleString() | cst.FormattedString() | cst.ConcatenatedString():
            return True
        case cst.IfExp(body=body, orelse=orelse):
            return _is_text(body) and _is_text(orelse)
        case _:
            return False


def _only_text(node: cst.CSTNode, changed: cst.CSTNode) -> bool:
    """The change is one of text alone."""
    if _is_text(node):
        return True
    if isinstance(node, cst.Assign | cst.AnnAssign):
        return _is_text(node.value)
    if isinstance(node, cst.Call) and isinstance(changed, cst.Call):
        at = _changed_argument(node, changed)
        if at is None:
            return False
        name = node.func.value if isinstance(node.func, cst.Name) else ""
        if at >= TEXT_AFTER.get(name, len(node.args)) or at < TYPE_BEFORE.get(name, 0):
            return True
        return _is_text(node.args[at].value)
    return False


def _changed_argument(node: cst.Call, changed: cst.Call) -> int | None:
    """The argument that is another one, or gone."""
    for at, argument in enumerate(node.args):
        if at >= len(changed.args) or changed.args[at] is not argument:
            return at
    return None
