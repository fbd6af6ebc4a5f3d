"""What is mutated, part by part, and which tests are asked.

Theory of operation. A part is a list of modules and the files whose tests may notice a change of
them. Which of these tests reach a function, and what each costs, is measured before the first
mutant; a mutant is shown to those that reach its function. `walks` are checks
of the driver's own: what `servecheck fuzz` does, cut into pieces of some milliseconds. `sample` is
a part of `fast` with tests of its own, small enough to be run by the driver's tests.
"""

from __future__ import annotations

from pathlib import Path

from attrs import frozen

ROOT = Path(__file__).resolve().parents[2]
SPEC = "spec/servespec"
WALKS = "mutation/walks"


@frozen
class Part:
    """Modules, and files of tests under `tests`, without their endings."""

    name: str
    files: tuple[str, ...]
    tests: tuple[str, ...]
    """Beside what all parts are shown."""

    def modules(self) -> tuple[tuple[str, Path], ...]:
        """Each module of the part, and its file, in order."""
        found: list[tuple[str, Path]] = []
        for pattern in self.files:
            found += ((module_of(file), file) for file in sorted(ROOT.glob(pattern)))
        return tuple(found)


def module_of(file: Path) -> str:
    """The name under which a file of `spec` or `impl` is imported."""
    parts = file.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PARTS = {
    part.name: part
    for part in (
        Part(
            "sample",
            ("impl/servecheck/engines/fast/manager.py",),
            ("test_block_manager",),
        ),
        Part(
            "fast",
            ("impl/servecheck/engines/fast/*.py",),
            (
                WALKS,
                "test_block_manager",
                "test_fast_engine",
                "test_fast_stories",
                "test_lockstep",
                "test_promises",
                "test_refinement",
                "test_sound",
                "test_trie",
            ),
        ),
        Part(
            "rules",
            (f"{SPEC}/*.py",),
            (
                WALKS,
                "test_bad_input",
                "test_cache_machine",
                "test_chain",
                "test_choices",
                "test_content",
                "test_document",
                "test_drafts",
                "test_enabled",
                "test_fast_engine",
                "test_open",
                "test_policy",
                "test_promises",
                "test_recordings",
                "test_rules",
            ),
        ),
        Part(
            "properties",
            (f"{SPEC}/properties/*.py",),
            (
                "test_books",
                "test_lasso",
                "test_nudges",
                "test_properties",
                "test_readings",
                "test_second_reading",
                "test_states",
                "test_verdicts",
            ),
        ),
        Part(
            "theory",
            (f"{SPEC}/theory/*.py",),
            (
                "test_arithmetic",
                "test_batching",
                "test_chunking",
                "test_document",
                "test_drafts",
                "test_isolation",
                "test_miniature",
                "test_monotone",
                "test_output",
                "test_rejection",
                "test_renaming",
                "test_smallest",
                "test_speculation",
            ),
        ),
    )
}
