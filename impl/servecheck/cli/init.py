"""`servecheck init`: a typed skeleton of an adapter for an engine, and the test that fuzzes it.

The skeleton has the methods of its level and says, where each one stands, what it must answer. It
type-checks as it is; every method that is not written yet fails the test by its name.
"""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from servecheck.cli.options import Json
from servecheck.cli.terminal import BadInput, Exit, escaped, say, say_json

HEAD = '''\
"""An adapter: {name} as an engine that servecheck can check.

Write the methods below. `pytest test_{name}.py` then drives the engine beside the
specification and shows the smallest program on which they part. What the engine cannot do goes
into `cannot` of its capabilities; what it cannot show is left None.
"""

from __future__ import annotations

{imports}


class {klass}:
    """{what}"""

    capabilities = Capabilities("{name}", "0.1", Level.{level})

    def __init__(self, config: Config, policy: Policy) -> None:
        """Build an engine of these sizes and choices.

        Raise `servecheck.engines.protocol.Unsupported` for those that it cannot have.
        """
        self.config = config
        self.policy = policy
'''

POOL_IMPORTS = """\
from servecheck.engines.protocol import Capabilities, Level, SeenPool
from servespec.chain import Namespace, Tokens
from servespec.config import Config
from servespec.policy import Policy
from servespec.pool import Blocks"""

POOL = '''
    def match(self, namespace: Namespace, text: Tokens, limit: int) -> Blocks:
        """The blocks of the longest cached prefix of `text`, at most `limit` full blocks."""
        raise NotImplementedError("match")

    def acquire(self, hits: Blocks) -> None:
        """One more reference for each; who was idle leaves the free queue."""
        raise NotImplementedError("acquire")

    def extend(self, count: int) -> Blocks:
        """Take `count` blocks from the free queue; so many are free."""
        raise NotImplementedError("extend")

    def publish(
        self, table: Blocks, namespace: Namespace, text: Tokens, start: int, stop: int
    ) -> None:
        """Blocks start … stop-1 of `table` are full of `text` and can be found from now on."""
        raise NotImplementedError("publish")

    def release(self, table: Blocks) -> None:
        """Let a table go; it is given first block first."""
        raise NotImplementedError("release")

    def clear(self) -> bool:
        """Forget what is cached; False if blocks are held, and then change nothing."""
        raise NotImplementedError("clear")

    def see_pool(self) -> SeenPool:
        """The free queue (head first), reference counts by block, the index; None for unseen."""
        raise NotImplementedError("see_pool")
'''

STEPS_IMPORTS = """\
from collections.abc import Sequence

from servecheck.engines.protocol import Capabilities, Level, SeenOutcome, SeenPlan
from servespec.actions import Output, Submit
from servespec.config import Config
from servespec.policy import Policy"""

STEPS = '''
    def submit(self, request: Submit) -> bool:
        """A request arrives; False: the engine refuses it, and nothing changes."""
        raise NotImplementedError("submit")

    def schedule(self) -> SeenPlan:
        """Make a plan: who is scheduled, from which position, with how many tokens."""
        raise NotImplementedError("schedule")

    def complete(self, outputs: Sequence[Output]) -> SeenOutcome:
        """The plan has run; what was sampled, by request. Who ended, and why."""
        raise NotImplementedError("complete")

    def discard(self) -> None:
        """The plan never ran."""
        raise NotImplementedError("discard")

    def abort(self, request_id: str) -> bool:
        """False: nobody has this id, and nothing changes."""
        raise NotImplementedError("abort")

    def reset_cache(self, preempt_running: bool) -> bool:
        """False: refused, and nothing changes."""
        raise NotImplementedError("reset_cache")
'''

TEST = '''\
"""{name} beside the specification: `pytest test_{name}.py`."""

from servecheck.fuzz import machine_for
from servespec.policy import VLLM_0_33

from {name} import {klass}

# The policy that the engine follows; None draws all of them.
Test{klass} = machine_for({klass}, policy=VLLM_0_33).TestCase
'''

LEVELS = {
    "pool": ("POOL", POOL_IMPORTS, POOL, "A block pool; the specification's scheduler drives it."),
    "steps": ("STEPS", STEPS_IMPORTS, STEPS, "A serving loop that schedules itself."),
}


def command(
    module: Annotated[str, typer.Argument(metavar="MODULE", help="Its name, such as my_engine.")],
    level: Annotated[Literal["pool", "steps"], typer.Option(help="How deep it shows itself.")],
    folder: Annotated[Path, typer.Option(help="Where to write.")] = Path(),
    as_json: Json = False,
) -> int:
    """Write MODULE.py, a typed skeleton of an adapter, and test_MODULE.py beside it.

    Nothing that exists is overwritten. Exit code 0: both are written; 2: they are not.
    """
    *before, last = re.split(r"[/\\]", module.removesuffix(".py"))
    if before and _is_name(last):
        where = escaped("/".join(before) or "/")
        raise BadInput(
            f"MODULE {module!r} is a path; write {last}, with --folder {where}, which must be there"
        )
    if not _is_name(module):
        raise BadInput(f"{module!r} is no name of a module: use letters, digits and _")
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "is not there; make it first"
        raise BadInput(f"--folder {escaped(str(folder))}: it {what}, or name another")
    name, imports, methods, what = LEVELS[level]
    klass = "".join(part.capitalize() for part in module.split("_")) or "Engine"
    head = HEAD.format(name=module, klass=klass, level=name, imports=imports, what=what)
    files = {
        folder / f"{module}.py": head + methods,
        folder / f"test_{module}.py": TEST.format(name=module, klass=klass),
    }
    for place in files:
        if place.exists():
            raise BadInput(f"{place} exists; move it, or choose another name")
    for place, text in files.items():
        place.write_text(text, encoding="utf-8")
    if as_json:
        say_json({"written": [str(place) for place in files], "level": level})
        return Exit.HOLDS
    for place in files:
        say("written: ", escaped(str(place)))
    return Exit.HOLDS


def _is_name(text: str) -> bool:
    """A module can be called so."""
    return text.isidentifier() and not keyword.iskeyword(text)
