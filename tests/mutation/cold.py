"""`python -m tests.mutation.cold`: tests of one mutant, where the changed module is imported.

Takes an object from standard input: `module`, `file`, `source`, and the node ids of `tests`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from types import CodeType, ModuleType

import pytest

from tests.mutation.forks import FAILED, HELD, limit_memory, limited
from tests.mutation.profile import register

SECONDS = 60.0
"""CPU time for all of the tests."""


class Changed(SourceFileLoader):
    """Loads a module from another source."""

    def __init__(self, module: str, file: str, source: str) -> None:
        super().__init__(module, file)
        self.source = source

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = compile(self.source, self.path, "exec", dont_inherit=True)
        return code


class Finder(MetaPathFinder):
    """Finds the changed module, and no other."""

    def __init__(self, loader: Changed) -> None:
        self.loader = loader

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.loader.name:
            return None
        packages = (
            [self.loader.path.rpartition("/")[0]]
            if self.loader.path.endswith("__init__.py")
            else None
        )
        return spec_from_file_location(
            fullname, self.loader.path, loader=self.loader, submodule_search_locations=packages
        )


def main() -> int:
    order = json.load(sys.stdin)
    sys.meta_path.insert(0, Finder(Changed(order["module"], order["file"], order["source"])))
    limit_memory()
    limited(SECONDS)
    register()
    flags = ["-x", "-q", "--tb=no", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return HELD if pytest.main([*flags, *order["tests"]]) == 0 else FAILED


if __name__ == "__main__":
    sys.exit(main())
