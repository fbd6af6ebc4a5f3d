"""What a row of the kill matrix depends on besides seed and budget, as digests.

Theory of operation. A row holds for one change of the engine and one set of strategies. Both are
told by the sha256 of their source: whoever changes one gets new rows, and can see which rows were
made before.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from attrs import fields

from servecheck import fuzz, marks
from servecheck.zoo.entry import Entry, Parts

FROZEN = Path(__file__).with_name("frozen.toml")
"""The strategies as they were before any entry was run."""
ELSEWHERE = frozenset(
    {
        "corpus.py",
        "counted.py",
        "legs.py",
        "long.py",
        "outcome.py",
        "retry.py",
        "summary.py",
        "workers.py",
    }
)
"""What counts, tells, keeps, or walks in other processes: no entry is tried by it."""


def hashes() -> dict[str, str]:
    """The modules that decide what is tried, the marks by which the guide goes among them: sha256
    by file."""
    folder, others = Path(fuzz.__file__).parent, Path(marks.__file__).parent
    files = {file.name: file for file in folder.glob("*.py") if file.name not in ELSEWHERE}
    files |= {f"marks/{file.name}": file for file in others.glob("*.py")}
    return {name: _digest(file.read_bytes()) for name, file in sorted(files.items())}


def strategies_of(files: Mapping[str, str]) -> str:
    """A short digest of such hashes."""
    told = "".join(f"{name} {digest}\n" for name, digest in sorted(files.items()))
    return _digest(told.encode())[:16]


def change_of(entry: Entry) -> str:
    """A short digest of the classes of an entry."""
    parts = [getattr(entry.parts, part.name) for part in fields(Parts)]
    return _digest("".join(map(inspect.getsource, parts)).encode())[:16]


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()
