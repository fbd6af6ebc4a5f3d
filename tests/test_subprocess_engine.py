"""Stories about engines that are processes: they go in lockstep over the wire, whatever language
they are written in; and whatever a process does, the checker neither hangs nor leaves anything
behind.

What goes wrong is played by `ODD`, a few lines of Python and what a story adds to them.
"""

from __future__ import annotations

import gc
import io
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path

import pytest
from attrs import evolve, fields, frozen

from servecheck.engines.fast.adapters import FastCache, FastLoop
from servecheck.engines.process import (
    EngineExited,
    EngineFailed,
    EngineGarbage,
    EngineRaised,
    EngineStartFailed,
    EngineTimeout,
)
from servecheck.engines.protocol import EngineError, EngineFactory, Level, Unsupported, Verb
from servecheck.engines.serve import Server, factory_of, serve
from servecheck.engines.subprocess import CommandFactory, CommandPool, command_engine
from servecheck.engines.wire import ANSWERS, MOST_BYTES, REQUESTS
from servecheck.fuzz.tell import PropertyFell
from servecheck.fuzz.wander import Wanderer
from servecheck.lockstep.follow import Diverged, EngineFollower, follower
from servecheck.strict import Refused
from servecheck.trace.codec import encode
from servespec.actions import Submit
from servespec.config import Config
from servespec.machine import Machine
from servespec.policy import MINIATURE, VLLM_0_33, Policy, Publish
from servespec.properties.base import step_of

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = (ROOT / "spec" / "PROTOCOL.md").read_text(encoding="utf-8")
POOL = [sys.executable, "-I", "-S", str(ROOT / "examples" / "pool_engine.py")]
FAST = [
    sys.executable,
    "-m",
    "servecheck.engines.serve",
    "servecheck.engines.fast.adapters:FastLoop",
]
CACHE = [*FAST[:-1], "servecheck.engines.fast.adapters:FastCache"]

CONFIG = Config(
    num_blocks=8, block_size=2, max_model_len=12, max_num_batched_tokens=8, max_num_seqs=3
)
LONG = 60.0
"""Seconds that nobody waits for."""


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a process of ours imports from."""
    places = (tmp_path, ROOT / "spec", ROOT / "impl")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, places)))


# --- Lockstep -------------------------------------------------------------------------------------


def walked(factory: EngineFactory, seed: int, policy: Policy | None = None) -> EngineFollower:
    """An engine that has gone along with a walk of 40 moves, in a world of the seed."""
    following: list[EngineFollower] = []

    def begin(machine: Machine) -> EngineFollower:
        following.append(follower(factory(machine.config, machine.policy), machine))
        return following[-1]

    Wanderer(seed, (), policy=policy, following=begin).go(40)
    return following[-1]


def steps_of(factory: EngineFactory, seeds: range, policy: Policy | None = None) -> int:
    """Steps that agreed, of some walks."""
    return sum(walked(factory, seed, policy).done for seed in seeds)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The example in C++, as a program."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++")
    out = tmp_path_factory.mktemp("pool") / "pool_engine"
    source = ROOT / "examples" / "pool_engine.cpp"
    options = ("-std=c++17", "-O0", "-Wall", "-Wextra", "-pedantic", "-Werror")
    subprocess.run([compiler, *options, "-o", str(out), str(source)], check=True)
    return str(out)


@pytest.mark.parametrize("command", [FAST, CACHE, POOL], ids=["loop", "cache", "example"])
def test_engines_over_the_wire_go_in_lockstep(command: list[str]) -> None:
    with CommandFactory(command) as factory:
        assert steps_of(factory, range(7)) > 300


@pytest.mark.parametrize("policy", [MINIATURE, VLLM_0_33], ids=["MINIATURE", "VLLM_0_33"])
def test_the_examples_are_pools_of_either_profile(compiled: str, policy: Policy) -> None:
    for command in (POOL, [compiled]):
        with CommandFactory(command) as factory:
            assert steps_of(factory, range(5), policy) > 100


def test_the_example_in_cpp_is_a_pool_of_any_policy(compiled: str) -> None:
    with CommandFactory([compiled]) as factory:
        assert steps_of(factory, range(10, 16)) > 300
        assert factory(CONFIG, MINIATURE).capabilities.name == "example pool in C++"


def test_an_engine_that_prints_and_reads_disturbs_nobody(tmp_path: Path) -> None:
    """Also the level between: plans without state."""
    (tmp_path / "noisy.py").write_text(
        "import os, sys\n"
        "from attrs import evolve\n"
        "from servecheck.engines.fast.adapters import FastLoop\n"
        "from servecheck.engines.protocol import Level, Verb\n"
        "print('loading')\n"
        "class Steps(FastLoop):\n"
        "    capabilities = evolve(\n"
        "        FastLoop.capabilities, level=Level.STEPS, cannot=frozenset({Verb.DISCARD})\n"
        "    )\n"
        "    def schedule(self):\n"
        "        print('thinking', len(sys.stdin.read()))\n"
        "        os.write(1, b'no JSON\\n')\n"
        "        return super().schedule()\n",
        encoding="utf-8",
    )
    with CommandFactory([*FAST[:-1], "noisy:Steps"]) as factory:
        assert steps_of(factory, range(3), VLLM_0_33) > 80
        can = factory(CONFIG, VLLM_0_33).capabilities
    assert (can.level, can.cannot) == (Level.STEPS, frozenset({Verb.DISCARD}))


@frozen
class Wrong:
    """One fault in the example pool, and what is said of it."""

    right: str
    wrong: str
    field: str
    observed: object


WRONG = (
    Wrong("self.free = head + self.free + tail", "self.free += head + tail", "free queue", None),
    Wrong("self.refs[block] = 1\n", "self.refs[block] = 2\n", "ref counts", None),
    Wrong(
        "(block)\n            self.refs[block] += 1",
        "(block)\n            raise MemoryError('no more')",
        "answer",
        "EngineRaised: MemoryError: no more",
    ),
)


@pytest.mark.parametrize("fault", WRONG, ids=lambda fault: fault.field)
def test_a_fault_is_a_divergence(fault: Wrong, tmp_path: Path) -> None:
    text = Path(POOL[-1]).read_text(encoding="utf-8")
    assert text.count(fault.right) == 1
    broken = tmp_path / "broken.py"
    broken.write_text(text.replace(fault.right, fault.wrong), encoding="utf-8")
    with CommandFactory([*POOL[:-1], str(broken)]) as factory, pytest.raises(PropertyFell) as fell:
        steps_of(factory, range(10), VLLM_0_33)
    parted = fell.value.__cause__
    assert isinstance(parted, Diverged)
    divergence = parted.divergence
    first = divergence.differences[0]
    assert (divergence.engine, divergence.level) == ("example pool in Python", Level.POOL)
    assert first.field == fault.field
    assert fault.observed in (None, first.observed)


# --- Misbehaviour ---------------------------------------------------------------------------------

ODD = """
import json, os, signal, sys, time
def write(text, to=1): os.write(to, text.encode())
def say(*lines): write("".join(line + "\\n" for line in lines))
def hear(): return json.loads(sys.stdin.readline())["seq"]
def hail(level="pool", **more):
    said = {"protocol": 1, "name": "odd", "version": "0", "level": level, **more}
    say(json.dumps({"seq": hear(), **said}))
with open(sys.argv[1] + "~", "w") as out: out.write(str(os.getpid()))
os.rename(sys.argv[1] + "~", sys.argv[1])
"""


class Odd:
    """Makes commands of what a process does; knows which process it was."""

    def __init__(self, place: Path) -> None:
        self.pid_file = place / "pid"

    def __call__(self, does: str) -> list[str]:
        return [sys.executable, "-I", "-S", "-c", ODD + does, str(self.pid_file)]

    def pid(self) -> int:
        return int(self.pid_file.read_text(encoding="utf-8"))


@pytest.fixture
def odd(tmp_path: Path) -> Iterator[Odd]:
    """Whatever a story does with a process, it is gone afterwards, and no zombie."""
    made = Odd(tmp_path)
    yield made
    if made.pid_file.exists():
        assert is_gone(made.pid())


def is_gone(pid: int) -> bool:
    """There is no such process, not even a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def pool(command: list[str], timeout: float = LONG, grace: float = LONG) -> CommandPool:
    engine = command_engine(command, CONFIG, MINIATURE, timeout, grace=grace)
    assert isinstance(engine, CommandPool)
    return engine


def failing(command: list[str], timeout: float = LONG, grace: float = LONG) -> EngineFailed:
    """How an engine fails that is asked for one block."""
    with pytest.raises(EngineFailed) as caught, pool(command, timeout, grace) as engine:
        engine.extend(1)
    return caught.value


ASKED = "extend (request 1)"


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        ("Hello", "not JSON from column 1 on in 'Hello'"),
        ("", "not JSON from column 1 on in ''"),
        (r"\x1b[2J\x00", r"not JSON from column 1 on in '\x1b[2J\x00'"),
        (r"\xff", "not JSON from column 1 on in 'ÿ'"),
        (
            '{"seq":1,"blocks":[NaN]}',
            """not JSON from column 20 on in '{"seq":1,"blocks":[NaN]}'""",
        ),
        ("[" * 2000 + "]" * 2000, "not JSON from column "),
        ("[1]", "expected an object, found [1] in '[1]'"),
        (
            '{"seq":1,"seq":1,"blocks":[]}',
            """key "seq" stands twice in '{"seq":1,"seq":1,"blocks":[]}'""",
        ),
        ('{"blocks":[1]}', """seq: expected 1 in '{"blocks":[1]}'"""),
        ('{"seq":0,"blocks":[1]}', """seq: expected 1 in '{"seq":0,"blocks":[1]}'"""),
        ('{"seq":true,"blocks":[1]}', """seq: expected 1 in '{"seq":true,"blocks":[1]}'"""),
        ('{"seq":1,"error":7}', """error: expected a string, found 7 in '{"seq":1,"error":7}'"""),
        ('{"seq":1}', "blocks: missing"),
        ('{"seq":1,"done":true}', "done: there is no such field"),
        ('{"seq":1,"blocks":[1],"note":""}', "note: there is no such field"),
        ('{"seq":1,"blocks":1}', "blocks: expected a list, found 1"),
        (
            '{"seq":1,"blocks":[1,true]}',
            "blocks[1]: expected a whole number of at most 64 bits, found true",
        ),
        (
            '{"seq":1,"blocks":[1.0]}',
            "blocks[0]: expected a whole number of at most 64 bits, found 1.0",
        ),
        (
            '{"seq":1,"blocks":[100000000000000000000]}',
            "blocks[0]: expected a whole number of at most 64 bits, found 1e",
        ),
    ],
)
def test_an_answer_that_is_none(odd: Odd, answer: str, what: str) -> None:
    error = failing(odd(f"hail(); hear(); say('''{answer}'''); hear()"))
    assert type(error) is EngineGarbage
    assert error.what.startswith(f"answered {ASKED} wrongly: {what}")


@frozen
class Story:
    """What a process does, and what is said of it."""

    name: str
    does: str
    kind: type[EngineFailed]
    what: str
    timeout: float = LONG
    grace: float = LONG


OVERLONG = f"by a line of more than {MOST_BYTES:,} bytes"
SLEEP = f"time.sleep({LONG})"

STORIES = (
    Story(
        "it says good morning first",
        "say('Engine 1.0 ready'); hail()",
        EngineGarbage,
        "answered hello (request 0) wrongly: not JSON from column 1 on in 'Engine 1.0 ready'",
    ),
    Story(
        "it answers twice",
        """hail(); hear(); say('{"seq":1,"blocks":[]}', '{"seq":1,"blocks":[]}'); hear()""",
        EngineGarbage,
        f"""answered {ASKED} by more than one line; the next is '{{"seq":1,"blocks":[]}}\\n'""",
    ),
    Story(
        "it speaks without being asked",
        """hear(); say('{"seq":1,"blocks":[]}', '{"seq":0}')""",
        EngineGarbage,
        """answered hello (request 0) wrongly: seq: expected 0 in '{"seq":1,"blocks":[]}'""",
    ),
    Story(
        "it answers the question before",
        """hail(); hear(); say('{"seq":0,"blocks":[]}'); hear()""",
        EngineGarbage,
        f"""answered {ASKED} wrongly: seq: expected 1 in '{{"seq":0,"blocks":[]}}'""",
    ),
    Story(
        "a line without end",
        "hail(); hear()\nwhile True: write('[' * 65536)",
        EngineGarbage,
        f"answered {ASKED} {OVERLONG}",
    ),
    Story(
        "a line a byte too long",
        f"hail(); hear(); say('[' * {MOST_BYTES + 1}); {SLEEP}",
        EngineGarbage,
        f"answered {ASKED} {OVERLONG}",
    ),
    Story(
        "a flood of lines",
        "hail(); hear()\nwhile True: say('x', 'x')",
        EngineGarbage,
        f"answered {ASKED} wrongly: not JSON from column 1 on in 'x'",
    ),
    Story(
        "it says nothing",
        f"hail(); {SLEEP}",
        EngineTimeout,
        f"no answer to {ASKED} within 0.3 s",
        timeout=0.3,
    ),
    Story(
        "it says something, but never all of it",
        "hail(); hear()\nwhile True: write(' '); time.sleep(0.01)",
        EngineTimeout,
        f"no answer to {ASKED} within 0.3 s, only the beginning of a line",
        timeout=0.3,
    ),
    Story(
        "it logs for ever",
        "hail(); hear()\nwhile True: write('still thinking\\n' * 99, to=2)",
        EngineTimeout,
        f"no answer to {ASKED} within 0.3 s",
        timeout=0.3,
    ),
    Story(
        "it does not listen",
        f"hail(); os.close(0); {SLEEP}",
        EngineTimeout,
        f"no answer to {ASKED} within 0.3 s",
        timeout=0.3,
    ),
    Story(
        "it is gone before it is greeted",
        "sys.exit(0)",
        EngineExited,
        "exited with code 0 before it answered hello (request 0)",
    ),
    Story(
        "it gives up",
        "hail(); hear(); sys.exit(4)",
        EngineExited,
        f"exited with code 4 before it answered {ASKED}",
    ),
    Story(
        "it dies in the middle",
        """hail(); hear(); write('{"seq":1,"bl'); os._exit(3)""",
        EngineExited,
        f"exited with code 3 in the middle of its answer to {ASKED}",
    ),
    Story(
        "it is killed",
        "hail(); hear(); os.kill(os.getpid(), signal.SIGKILL)",
        EngineExited,
        f"was killed by SIGKILL before it answered {ASKED}",
    ),
    Story(
        "it closes its output and lives on",
        f"hail(); os.close(1); {SLEEP}",
        EngineExited,
        f"closed its standard output before it answered {ASKED}",
        grace=0.1,
    ),
    Story(
        "its child holds the pipes open",
        f"hail(); hear()\nif os.fork() == 0: {SLEEP}\nos._exit(5)",
        EngineExited,
        f"exited with code 5 before it answered {ASKED}",
    ),
    Story(
        "it has a level without verbs",
        "hail('events')",
        EngineGarbage,
        'answered hello (request 0) wrongly: level: expected one of "pool", "steps", "state", '
        'found "events"',
    ),
    Story(
        "it cannot do what nobody knows",
        "hail(cannot=['discard', 'fly'])",
        EngineGarbage,
        "answered hello (request 0) wrongly: cannot[1]: expected one of "
        "discard, abort, abort_in_flight, reset, reset_preempting, drafts, adapters, salts, "
        "stop_tokens",
    ),
    Story(
        "it speaks another protocol",
        "hail(protocol=2)",
        EngineStartFailed,
        "speaks protocol 2; this checker speaks 1",
    ),
    Story(
        "it greets with an error",
        """say(json.dumps({"seq": hear(), "error": "no GPU"}))""",
        EngineStartFailed,
        "answered hello with an error: no GPU",
    ),
)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_a_process_goes_wrong(odd: Odd, story: Story) -> None:
    error = failing(odd(story.does), story.timeout, story.grace)
    assert (type(error), error.what) == (story.kind, story.what)
    assert str(error).startswith(f"{sys.executable} -I -S -c "[:59])


def test_an_exit_is_told_in_full(odd: Odd) -> None:
    error = failing(
        odd(r"hail(); hear(); write('loading\n\nno \x1b[1mroom\x1b[0m\n', 2); sys.exit(9)")
    )
    assert isinstance(error, EngineExited)
    assert (error.code, error.signal) == (9, None)
    assert error.stderr == ("loading", "no \x1b[1mroom\x1b[0m")
    assert str(error).endswith(
        f": exited with code 9 before it answered {ASKED}; "
        r"its stderr ends: loading | no \x1b[1mroom\x1b[0m"
    )


def test_a_signal_is_told_in_full(odd: Odd) -> None:
    error = failing(odd("hail(); hear(); os.kill(os.getpid(), signal.SIGTERM)"))
    assert isinstance(error, EngineExited)
    assert (error.code, error.signal) == (None, signal.SIGTERM)


def test_of_a_flooded_stderr_the_last_is_kept(odd: Odd) -> None:
    lines = "''.join(f'line {i}\\n' for i in range(100_000))"
    error = failing(odd(f"hail(); hear(); write({lines}, 2); sys.exit(1)"))
    assert error.stderr[-3:] == ("line 99997", "line 99998", "line 99999")


def test_an_engine_may_log_as_much_as_it_likes(odd: Odd) -> None:
    logs = "write('x' * 1_000_000, 2)"
    with pool(odd(f'{logs}; hail(); hear(); {logs}; say(\'{{"seq":1,"blocks":[4]}}\')')) as engine:
        assert engine.extend(1) == (4,)


def test_an_engine_may_answer_piece_by_piece(odd: Odd) -> None:
    answer = '{"seq":1,"blocks":[4,5]}\\r\\n'
    slowly = f"for c in '{answer}': write(c); time.sleep(0.001)"
    with pool(odd(f"hail(); hear()\n{slowly}\nhear()")) as engine:
        assert engine.extend(2) == (4, 5)


def test_an_engine_that_reads_nothing_does_not_hold_up_a_long_question(odd: Odd) -> None:
    with pool(odd(f"hail(); {SLEEP}"), timeout=0.3) as engine:
        with pytest.raises(EngineTimeout, match=r"no answer to release \(request 1\) within 0.3 s"):
            engine.release((1,) * 1_000_000)
        assert is_gone(odd.pid())


def test_a_question_may_be_long(odd: Odd) -> None:
    reads = "n = len(json.loads(sys.stdin.readline())['table'])"
    with pool(odd(f"hail(); {reads}; say(json.dumps({{'seq': 1, 'error': str(n)}}))")) as engine:
        with pytest.raises(EngineRaised, match=r"^1000000$"):
            engine.release((1,) * 1_000_000)
        with pytest.raises(EngineError, match=r"line of more than 16,777,216 bytes$"):
            engine.release((100_000,) * 3_000_000)
        with pytest.raises(EngineError, match=r"extend \(request 2\) cannot be written"):
            engine.extend(1 << 70)


def test_an_error_is_not_the_end(odd: Odd) -> None:
    answers = """say('{"seq":1,"error":"not now"}'); hear(); say('{"seq":2,"blocks":[3]}')"""
    with pool(odd(f"hail(); hear(); {answers}")) as engine:
        with pytest.raises(EngineRaised, match=r"^not now$"):
            engine.extend(1)
        assert engine.extend(1) == (3,)


def test_after_the_end_nothing_can_be_asked(odd: Odd) -> None:
    engine = pool(odd("hail(); hear(); sys.exit(4)"))
    with pytest.raises(EngineExited):
        engine.extend(1)
    with pytest.raises(EngineError, match="cannot be asked clear: it is gone: exited with code 4"):
        engine.clear()
    with pool(odd("hail(); hear()")) as engine:
        pass
    with pytest.raises(EngineError, match=r"cannot be asked clear: it was closed$"):
        engine.clear()


def test_a_failing_process_is_a_divergence(odd: Odd) -> None:
    does = "hail('state'); say(json.dumps({'seq': hear(), 'done': True})); sys.exit(4)"
    machine = Machine(CONFIG, MINIATURE)
    before, submit = machine.initial(), Submit("a", (1,), 1)
    step = step_of(machine, before, submit, machine.apply(before, submit))
    with command_engine(odd(does), CONFIG, MINIATURE) as engine:
        following = follower(engine, machine)
        with pytest.raises(Diverged) as caught:
            following.follow(step)
    assert caught.value.divergence.number == 0
    observed = str(caught.value.divergence.differences[0].observed)
    assert observed.startswith("EngineExited: ")
    assert observed.endswith("exited with code 4 before it answered see_state (request 2)")


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (["no-such-engine", "--fast"], "cannot be started: No such file or directory"),
        ("no-such-engine 'the fast one'", "cannot be started: No such file or directory"),
        ([str(ROOT)], "cannot be started: Permission denied"),
        (["a\0b"], "cannot be started: embedded null byte"),
        ("engine 'the fast one", "is no command: No closing quotation"),
        ("", "is no command: it is empty"),
        ([], "is no command: it is empty"),
    ],
)
def test_a_command_that_cannot_be_started(command: list[str] | str, what: str) -> None:
    with pytest.raises(EngineStartFailed) as caught:
        command_engine(command, CONFIG, MINIATURE)
    assert caught.value.what == what


def test_an_engine_that_is_not_made_for_this(odd: Odd) -> None:
    says = "say(json.dumps({'seq': hear(), 'unsupported': 'null_block: I need one'}))"
    with pytest.raises(Unsupported, match=r"null_block: I need one$"):
        command_engine(odd(f"{says}; hear()"), CONFIG, MINIATURE)


# --- The end --------------------------------------------------------------------------------------


def test_the_end_of_input_is_enough(odd: Odd, tmp_path: Path) -> None:
    """Nobody gets a signal who goes by itself, and may take its time over it."""
    told = tmp_path / "told"
    does = (
        f"def told(word):\n    with open({str(told)!r}, 'a') as out: out.write(word)\n"
        "signal.signal(signal.SIGTERM, lambda *_: told('SIGTERM'))\n"
        "hail(); sys.stdin.read(); write('bye ' * 100_000, 2); say('bye'); told('end')"
    )
    with pool(odd(does)):
        pass
    assert told.read_text(encoding="utf-8") == "end"


@pytest.mark.parametrize(
    "does",
    [
        SLEEP,
        f"signal.signal(signal.SIGTERM, signal.SIG_IGN); hail(); {SLEEP}",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); hail(); sys.stdin.read()\n"
        "while True: write('x\\n')",
        f"hail(); os.close(1); os.close(2); {SLEEP}",
    ],
    ids=["never greets", "ignores SIGTERM", "floods", "closes all"],
)
def test_who_does_not_go_is_made_to(odd: Odd, does: str) -> None:
    try:
        engine = command_engine(odd(does), CONFIG, MINIATURE, hello_timeout=0.3, grace=0.1)
    except EngineTimeout:
        pass  # that one has not said a word
    else:
        engine.close()
        engine.close()
        assert is_gone(engine.pid)


def test_what_an_engine_starts_ends_with_it(odd: Odd, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    child = f'os.open({str(fifo)!r}, os.O_WRONLY); say(\'{{"seq":1,"blocks":[]}}\'); {SLEEP}'
    with pool(odd(f"hail(); hear()\nif os.fork() == 0: {child}\nhear()")) as engine:
        assert engine.extend(0) == ()
    # The last writer's end is the end of the pipe.
    ready, _, _ = select.select([reader], [], [], LONG)
    assert ready
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_who_is_forgotten_ends(odd: Odd) -> None:
    engine = pool(odd(f"hail(); {SLEEP}"))
    pid = engine.pid
    assert not is_gone(pid)
    del engine
    gc.collect()
    assert is_gone(pid)


def test_an_interrupted_checker_leaves_nothing_behind(odd: Odd, tmp_path: Path) -> None:
    script = tmp_path / "checker.py"
    script.write_text(
        "import sys\n"
        "from servecheck.engines.subprocess import command_engine\n"
        "from servespec.config import Config\n"
        "from servespec.policy import MINIATURE\n"
        f"engine = command_engine(sys.argv[1:], {CONFIG}, MINIATURE, {LONG})\n"
        "engine.clear()\n",
        encoding="utf-8",
    )
    # Whom the engine tells that it has been asked knows that the checker waits.
    tells = "with open(sys.argv[2], 'w') as out: out.write('asked')"
    does = odd(f"hail(); hear()\n{tells}\n{SLEEP}")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    checker = subprocess.Popen([sys.executable, script, *does, str(fifo)], stderr=subprocess.PIPE)
    assert fifo.read_text(encoding="utf-8") == "asked"
    checker.send_signal(signal.SIGINT)
    _, said = checker.communicate(timeout=LONG)
    assert said.rstrip().endswith(b"KeyboardInterrupt")
    assert is_gone(odd.pid())


def test_one_process_is_one_engine_after_the_other() -> None:
    with CommandFactory(POOL) as factory:
        first = factory(CONFIG, MINIATURE)
        assert isinstance(first, CommandPool)
        assert first.extend(2) == (0, 1)
        second = factory(CONFIG, VLLM_0_33)
        assert isinstance(second, CommandPool)
        assert second.pid == first.pid
        assert second.extend(2) == (1, 2)
        with pytest.raises(EngineError, match=r"extend: its process is another engine now$"):
            first.extend(1)
        first.close()  # it is not its process any more
        assert second.extend(1) == (3,)
        second.close()
        third = factory(CONFIG, MINIATURE)
        assert third.pid != first.pid
    assert is_gone(first.pid)
    assert is_gone(third.pid)


# --- An engine in Python, behind the protocol -----------------------------------------------------


def answers(factory: EngineFactory, *asked: dict[str, object]) -> list[dict[str, object]]:
    """What is answered to lines."""
    heard, said = io.BytesIO(), io.BytesIO()
    heard.write(b"".join(encode(line) + b"\n" for line in asked))
    heard.seek(0)
    serve(factory, heard, said)
    return [json.loads(line) for line in said.getvalue().splitlines()]


def hello(config: Config = CONFIG, policy: Policy = MINIATURE) -> dict[str, object]:
    return {"seq": 0, "verb": "hello", "protocol": 1, "config": config, "policy": policy}


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ({"verb": "extend", "count": 9}, "ActionDisabled: extend: 9 blocks of 8 free ones; "),
        ({"verb": "extend", "count": "1"}, "count: expected a whole number of at most 64 bits, "),
        ({"verb": "extend"}, "count: missing"),
        ({"verb": "schedule"}, "verb: an engine of this level has no schedule"),
        ({"verb": "see_state"}, "verb: an engine of this level has no see_state"),
        ({"verb": "fly"}, "verb: expected one of hello, match, "),
        ({}, "verb: expected one of hello, match, "),
    ],
)
def test_what_cannot_be_done_is_answered(asked: dict[str, object], answer: str) -> None:
    clear = {"seq": 2, "verb": "clear"}
    _, failed, done = answers(FastCache, hello(), {"seq": 1, **asked}, clear)
    assert set(failed) == {"seq", "error"}
    assert failed["seq"] == 1
    assert str(failed["error"]).startswith(answer)
    assert done == {"seq": 2, "done": True}


def test_greetings_that_come_to_nothing() -> None:
    nobody = {"seq": 1, "verb": "clear"}
    too_small = evolve(CONFIG, num_blocks=1)
    said = answers(
        FastCache, nobody, hello(too_small, VLLM_0_33), {**hello(), "protocol": 2}, nobody
    )
    assert said == [
        {"seq": 1, "error": "verb: hello comes first"},
        {
            "seq": 0,
            "unsupported": "num_blocks: 1 is the null block alone: nothing can be handed out; "
            "set another num_blocks",
        },
        {"seq": 0, "unsupported": "protocol 2; this engine speaks 1"},
        {"seq": 1, "error": "verb: hello comes first"},
    ]


def test_an_engine_that_only_tells_events_has_nothing_to_say_here() -> None:
    class Telling(FastCache):
        capabilities = evolve(FastCache.capabilities, level=Level.EVENTS)

    said = answers(Telling, hello(), {"seq": 1, "verb": "clear"})
    assert said == [
        {"seq": 0, "unsupported": "fast has level EVENTS, which has no verbs"},
        {"seq": 1, "error": "verb: hello comes first"},
    ]


def test_an_engine_that_is_less_than_it_says() -> None:
    class Boasting(FastCache):
        capabilities = evolve(FastCache.capabilities, level=Level.STATE)

    why = "fast says that it has level STATE, and lacks methods of it"
    assert answers(Boasting, hello()) == [{"seq": 0, "error": f"EngineError: {why}"}]


def test_what_has_no_number_cannot_be_answered() -> None:
    with pytest.raises(Refused, match="a whole number"):
        Server(FastCache).answer(b'{"verb":"clear"}')


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nowhere", "'nowhere' is not of the form module:factory"),
        ("no.such.module:Engine", "cannot take no.such.module:Engine: No module named 'no'"),
        ("json:Engine", "cannot take json:Engine: module 'json' has no attribute 'Engine'"),
        ("json:__name__", "json:__name__ cannot be called"),
    ],
)
def test_a_factory_that_is_none(name: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(why)}$"):
        factory_of(name)


def test_a_program_without_a_factory_says_why() -> None:
    with pytest.raises(EngineExited) as caught:
        command_engine([*FAST[:-1], "json:Engine"], CONFIG, MINIATURE)
    assert caught.value.code == 2
    why = "error: cannot take json:Engine: module 'json' has no attribute 'Engine'"
    assert caught.value.stderr == (why,)


# --- The document ---------------------------------------------------------------------------------


def section(title: str) -> str:
    """What stands under a headline, up to the next."""
    found = re.search(
        rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", DOCUMENT, re.MULTILINE | re.DOTALL
    )
    assert found is not None, f"PROTOCOL.md has no section {title}"
    return found[1]


@pytest.mark.parametrize("verb", REQUESTS)
def test_the_document_names_every_field_of_a_verb(verb: str) -> None:
    text = section("3. `hello`" if verb == "hello" else f"`{verb}`")
    kinds: tuple[type, ...] = (REQUESTS[verb], ANSWERS[verb])
    for name in (field.name for kind in kinds for field in fields(kind)):
        assert f"`{name}`" in text
    assert f'> {{"seq":{0 if verb == "hello" else ""}' in text


def test_the_document_names_all_sizes_and_choices() -> None:
    sizes = re.findall(r"^\| `(\w+)`", section("`config`: sizes"), re.MULTILINE)
    assert sizes == [field.name for field in fields(Config)]
    choices = section("`policy`: choices")
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", choices, re.MULTILINE)
    assert [name for name, _ in rows] == [field.name for field in fields(Policy)]
    for name, said in rows:
        kind = type(getattr(VLLM_0_33, name))
        if issubclass(kind, Enum):
            assert all(f"`{value.value}`" in said for value in kind), name
    cannot = re.findall(r"^\| `(\w+)` \|", section("3. `hello`"), re.MULTILINE)
    assert [verb.name.lower() for verb in Verb] == cannot[-len(Verb) :]


def conversation(text: str) -> tuple[list[str], list[str]]:
    """Questions and answers of example lines."""
    return re.findall(r"^> (.*)$", text, re.MULTILINE), re.findall(r"^< (.*)$", text, re.MULTILINE)


def without_version(line: str) -> dict[str, object]:
    said: dict[str, object] = json.loads(line)
    return {name: value for name, value in said.items() if name != "version"}


def test_the_example_lines_are_what_engines_say(compiled: str) -> None:
    asked, answered = conversation(DOCUMENT)
    greeting = json.loads(asked[0])
    assert greeting["policy"] == json.loads(encode(evolve(VLLM_0_33, publish=Publish.AFTER_STEP)))
    loops = next(at for at, line in enumerate(asked) if '"submit"' in line)
    talks: dict[str, tuple[list[str], list[str], Callable[[str], str]]] = {
        "pool": (asked[:loops], answered[:loops], str),
        "in C++": (asked[:loops], answered[:loops], lambda name: name.replace("C++", "Python")),
        "fast": ([asked[0], *asked[loops:]], answered[loops:], str),
    }
    commands = {"pool": POOL, "in C++": [compiled], "fast": FAST}
    for name, (questions, expected, same) in talks.items():
        said = subprocess.run(
            commands[name],
            input="".join(f"{line}\n" for line in questions),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        heard = [without_version(same(line)) for line in said.splitlines()]
        told = [without_version(line) for line in expected]
        if name == "fast":
            assert told[0]["name"] == name
        # Keys have other names, in the order of the index.
        assert renamed(heard) == renamed(told)


def renamed(said: list[dict[str, object]]) -> list[dict[str, object]]:
    """With keys by the order in which they come."""
    text = json.dumps(said)
    for number, key in enumerate(dict.fromkeys(re.findall(r'"key": "(\w+)"', text))):
        text = text.replace(f'"key": "{key}"', f'"key": "#{number}"')
    found: list[dict[str, object]] = json.loads(text)
    return found


def test_the_engine_of_this_process_says_the_same() -> None:
    """Nothing is lost on the way: over the wire an engine shows what it shows here."""
    with CommandFactory(FAST) as factory:
        far, near = walked(factory, 3, VLLM_0_33), walked(FastLoop, 3, VLLM_0_33)
    assert far.done == near.done
    assert far.comparison.compared == near.comparison.compared
    assert far.comparison.unseen == near.comparison.unseen
