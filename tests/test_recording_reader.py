"""Stories about reading recordings: what is taken, what it means, and what is refused and how.

All recordings of a real scheduler that can be found are read (`tests.recordings`). All refusals
are told on a small recording written here, in which every kind of line and every field of the
format occurs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from servecheck.recording import (
    AbortDone,
    AbortLine,
    AllBlocksCleared,
    Arrival,
    BlockRemoved,
    BlockStored,
    CachedEntry,
    CachedHash,
    Message,
    NewEntry,
    OutcomeLine,
    PassLine,
    Recording,
    RecordingError,
    RequestState,
    ResetDone,
    ResetLine,
    RunConfig,
    StateLine,
    StepLine,
    digest,
    event_hash,
    hex_hash,
    read_recording,
    short_hash,
)
from servespec.chain import PUBLIC, Chain, Namespace, chain, link
from tests.recordings import folders, names_in, prefix, prefixes

# --- The recordings of the real scheduler ---------------------------------------------------------


@pytest.fixture(scope="module")
def recordings() -> dict[str, Recording]:
    return {name: read_recording(prefix) for name, prefix in prefixes().items()}


@pytest.mark.parametrize("folder", folders(), ids=str)
def test_every_recording_reads_whole(folder: Path) -> None:
    config = orjson.loads((folder / "config.json").read_bytes())
    names = names_in(folder)
    assert set(names) == config["runs"].keys() | config["toy_runs"].keys()
    for name in names:
        run = read_recording(folder / name)
        assert run.release == "0.33.0"
        read = {"events": len(run.messages)}
        if run.states is not None:
            read["state"] = len(run.states)
        for kind, lines in read.items():
            assert (folder / f"{name}.{kind}.jsonl").read_bytes().count(b"\n") == lines
        assert all(line.pass_ or line.outcome or line.aborts for line in run.steps)


def test_a_run_borrows_the_workload_of_another() -> None:
    nochunk, conv = read_recording(prefix("nochunk")), read_recording(prefix("conv"))
    assert nochunk.workload == conv.workload
    assert nochunk.steps != conv.steps


def test_a_run_borrows_workload_and_steps_of_another(recordings: dict[str, Recording]) -> None:
    assert recordings["dup_bytes_hashes"].workload == recordings["dup"].workload
    assert recordings["dup_bytes_hashes"].steps == recordings["dup"].steps
    assert recordings["dup_bytes_hashes"].messages != recordings["dup"].messages


def test_settings_absent_from_the_file_have_the_engines_defaults(
    recordings: dict[str, Recording],
) -> None:
    assert recordings["dup"].config == RunConfig(
        num_gpu_blocks=33,
        block_size=16,
        max_num_batched_tokens=256,
        max_num_seqs=8,
        policy="fcfs",
        max_model_len=512,
        enable_chunked_prefill=True,
    )
    assert recordings["dup"].config.budget == 256
    assert not recordings["toy_nocache"].config.enable_prefix_caching
    assert recordings["toy_nocache"].messages == ()


def test_only_asynchronous_runs_part_a_pass_from_its_outcome(
    recordings: dict[str, Recording],
) -> None:
    """One turn behind: the first turn has no outcome, the last no pass, and each names its pass."""
    for run in recordings.values():
        for turn in run.steps:
            if turn.outcome is not None:
                assert (turn.outcome.update_of is not None) == run.config.async_scheduling
            if not run.config.async_scheduling:
                assert (turn.pass_ is None) == (turn.outcome is None)
        if run.config.async_scheduling:
            assert run.steps[0].outcome is None
            assert any(turn.pass_ is None and turn.outcome is not None for turn in run.steps)


def test_every_hash_of_every_event_recomputes(recordings: dict[str, Recording]) -> None:
    """From nothing but the tokens, the parent and the extra keys that the events themselves give.

    Parents are looked up among the hashes that this run has published before.
    """
    checked = salted = 0
    for run in recordings.values():
        chains: dict[int | str, Chain] = {}
        for event in (event for message in run.messages for event in message.events):
            match event:
                case BlockStored():
                    size = event.block_size
                    here = None
                    if event.parent_block_hash is not None:
                        here = chains[event.parent_block_hash]
                    assert len(event.token_ids) == size * len(event.block_hashes)
                    for number, (name, extra) in enumerate(
                        zip(event.block_hashes, event.extra_keys, strict=True)
                    ):
                        if here is None:
                            namespace = PUBLIC if extra is None else Namespace(salt=extra[0])
                        else:
                            assert extra is None  # the chain carries the salt on
                            namespace = here.namespace
                        tokens = event.token_ids[number * size : (number + 1) * size]
                        here = link(namespace, here, tokens)
                        assert name == (hex_hash if isinstance(name, str) else event_hash)(here)
                        chains[name] = here
                        checked += 1
                        salted += extra is not None
                case BlockRemoved():
                    assert chains.keys() >= set(event.block_hashes)
                case AllBlocksCleared():
                    pass
        shorts = {short_hash(found) for found in chains.values()}
        assert shorts >= {entry.hash for state in run.states or () for entry in state.cached}
    assert checked > 1_000
    assert salted > 50


# --- The hash, without any recording --------------------------------------------------------------


def test_the_hash_of_known_blocks() -> None:
    """Numbers that the real engine published for these tokens."""
    public = chain(PUBLIC, ((1, 0, 2, 2),))
    assert event_hash(public) == 11189597836888145777
    assert short_hash(public) == "97327f71"
    salted = chain(Namespace(salt="b"), ((1, 0, 1, 0), (2, 0, 0, 2)))
    assert salted.parent is not None
    assert event_hash(salted.parent) == 5089239428353981257
    assert event_hash(salted) == 6238031324788970324
    assert hex_hash(salted).endswith(f"{event_hash(salted):016x}")
    assert digest(salted).hex() == hex_hash(salted)


def test_a_salt_in_the_first_block_tells_all_later_blocks_apart() -> None:
    runs = ((1, 2), (3, 4), (5, 6))
    names = {event_hash(chain(Namespace(salt=salt), runs)) for salt in (None, "a", "b")}
    assert len(names) == 3


def test_a_chain_of_a_hundred_thousand_links_has_a_hash() -> None:
    """The longest texts are far deeper than Python may recurse."""
    long = chain(PUBLIC, tuple((token,) for token in range(100_000)))
    again = digest(long)
    assert len(again) == 32
    assert digest(long) is again  # kept, not computed twice


@pytest.mark.parametrize("namespace", [Namespace(adapter="alice"), Namespace(salt="")])
def test_a_namespace_that_no_recording_shows_has_no_hash(namespace: Namespace) -> None:
    with pytest.raises(ValueError, match="no recording shows how vLLM"):
        digest(chain(namespace, ((1, 2),)))


# --- A small recording, with every kind of line and every field -----------------------------------

CONFIG = {
    "vllm": "0.33.0",
    "notes": ["for people"],
    "runs": {
        "plain": {
            "num_gpu_blocks (one is the null block)": 9,
            "block_size": 4,
            "max_num_batched_tokens": 8,
            "max_num_seqs": 4,
            "enable_chunked_prefill": True,
            "policy": "fcfs",
            "max_model_len": 32,
        }
    },
    "toy_runs": {
        "toy": {
            "num_gpu_blocks": 9,
            "block_size": 2,
            "max_num_batched_tokens": 8,
            "max_num_scheduled_tokens": 6,
            "max_num_seqs": 4,
            "policy": "priority",
            "max_model_len": 32,
            "enable_chunked_prefill": True,
            "long_prefill_token_threshold": 3,
            "watermark": 0.5,
            "scheduler_reserve_full_isl": False,
            "enable_prefix_caching": True,
            "num_speculative_tokens": 2,
            "num_lookahead_tokens": 1,
            "async_scheduling": True,
            "vocab": 3,
            "seed": "small",
            "draft_right": 0.7,
        }
    },
}

LINES = {
    "workload": """\
{"id":"a","arrival_step":0,"prompt":[1,2,3],"max_tokens":4}
{"id":"b","arrival_step":0,"prompt":[1],"max_tokens":1,"priority":-1,"cache_salt":"s","stop_token_ids":[2]}
{"abort":["b","nobody","b"],"when":"during","arrival_step":1}
{"reset":"running","arrival_step":2}
""",
    "steps": """\
{"step":0,"arrived":["a","b"],"scheduled":{"b":1,"a":3},"total":4,"scheduled_spec":{"a":[-1]},"new":[{"id":"a","num_computed":0,"block_ids":[1,2]}],"cached":[{"id":"b","num_computed":2,"new_block_ids":[3],"resumed":false},{"id":"c","num_computed":2,"new_block_ids":null,"resumed":false}],"preempted":["c"],"preempt_order":["c"],"finished_before":[],"running":["b","a"],"waiting":["c"],"free_blocks":5}
{"step":1,"arrived":[],"aborts":[{"id":"b","when":"during","was":"decode","done":["b"]},{"id":"b","when":"during","was":null,"done":[]}]}
{"step":2,"arrived":[],"resets":[{"kind":"running","ok":true,"preempted":["a"]}],"update_of":0,"sampled":{"a":[2,1],"b":2},"appended":{"a":[2]},"finished":["a"],"finish_reason":{"a":"stop"},"drafts":{"a":[0,1]},"free_blocks_after":8,"computed_after":{"a":4},"tables":{"a":[1,2]},"reset":true}
""",
    "events": """\
{"topic":"kv","seq":0,"ts":0.5,"dp_rank":0,"events":[{"type":"BlockStored","block_hashes":[18446744073709551615],"parent_block_hash":null,"token_ids":[1,2],"block_size":2,"lora_id":null,"medium":"GPU","lora_name":null,"extra_keys":[["s"]],"group_idx":0,"kv_cache_spec_kind":"full_attention"},{"type":"BlockRemoved","block_hashes":[7],"medium":"GPU","group_idx":0},{"type":"AllBlocksCleared"}]}
""",
    "state": """\
{"step":0,"at":"updated","update_of":0,"ref":[0,1,0],"free":[2],"cached":[["97327f71",[1]]],"reqs":{"a":{"status":"RUNNING","computed":3,"tokens":4,"hashes":2,"table":[1],"published":1,"preemptions":1,"spec":[-1,-1],"placeholders":1,"in_flight":3,"stale":1}},"running":["a"],"waiting":[]}
""",
}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(orjson.dumps(CONFIG).decode())
    for kind, text in LINES.items():
        (tmp_path / f"toy.{kind}.jsonl").write_text(text)
    return tmp_path / "toy"


def test_the_small_recording_means_what_it_says(small: Path) -> None:
    run = read_recording(small)
    assert run.config.budget == 6  # scheduled tokens before batched ones
    assert run.config.watermark == 0.5
    assert run.workload == (
        Arrival("a", 0, (1, 2, 3), 4),
        Arrival("b", 0, (1,), 1, priority=-1, cache_salt="s", stop_token_ids=(2,)),
        AbortLine(("b", "nobody", "b"), "during", 1),
        ResetLine("running", 2),
    )
    assert run.steps == (
        StepLine(
            0,
            ("a", "b"),
            PassLine(
                scheduled=(("b", 1), ("a", 3)),  # the order of scheduling, not of arrival
                total=4,
                new=(NewEntry("a", 0, (1, 2)),),
                cached=(CachedEntry("b", 2, (3,), False), CachedEntry("c", 2, None, False)),
                preempted=("c",),
                finished_before=(),
                running=("b", "a"),
                waiting=("c",),
                free_blocks=5,
                scheduled_spec=(("a", (-1,)),),
                preempt_order=("c",),
            ),
        ),
        StepLine(
            1,
            (),
            aborts=(
                AbortDone("b", "during", "decode", ("b",)),
                AbortDone("b", "during", None, ()),
            ),
        ),
        StepLine(
            2,
            (),
            None,
            OutcomeLine(
                sampled=(("a", (2, 1)), ("b", (2,))),  # a bare token is a tuple of one
                finished=("a",),
                free_blocks_after=8,
                appended=(("a", (2,)),),
                drafts=(("a", (0, 1)),),
                finish_reason=(("a", "stop"),),
                computed_after=(("a", 4),),
                tables=(("a", (1, 2)),),
                update_of=0,
            ),
            resets=(ResetDone("running", True, ("a",)),),
            reset=True,
        ),
    )
    stored = BlockStored(
        (2**64 - 1,), None, (1, 2), 2, (("s",),), None, None, "GPU", 0, "full_attention"
    )
    events = (stored, BlockRemoved((7,), "GPU", 0), AllBlocksCleared())
    assert run.messages == (Message(0, 0.5, events, "kv", 0),)
    held = RequestState("RUNNING", 3, 4, 2, (1,), 1, 1, (-1, -1), 1, 3, 1)
    cached = (CachedHash("97327f71", (1,)),)
    assert run.states == (
        StateLine(0, "updated", (0, 1, 0), (2,), cached, (("a", held),), ("a",), (), 0),
    )


def test_a_run_without_states_says_so(small: Path) -> None:
    small.with_name("toy.state.jsonl").unlink()
    assert read_recording(small).states is None


def test_other_files_can_stand_in(small: Path) -> None:
    for kind in ("workload", "steps"):
        small.with_name(f"toy.{kind}.jsonl").rename(small.with_name(f"elsewhere.{kind}"))
    other = small.with_name
    run = read_recording(
        small, workload=other("elsewhere.workload"), steps=other("elsewhere.steps")
    )
    assert len(run.workload) == 4
    assert len(run.steps) == 3


# --- What is refused, and in which words ----------------------------------------------------------


def refusal(prefix: Path) -> str:
    """The message, with the folder of the recording taken off."""
    with pytest.raises(RecordingError) as caught:
        read_recording(prefix)
    message = str(caught.value)
    assert message.startswith(str(caught.value.file))
    return message.removeprefix(f"{prefix.parent}{os.sep}")


CORRECT = "correct it: this reads recordings as made of vLLM 0.33.0, and no other form"
CUT = "the file was cut or edited: take a whole copy of it"

EDITS = [
    # (kind of file, the text there, what a hostile hand writes instead, the refusal)
    (
        "workload",
        '"max_tokens":1,',
        '"max_tokens":1,"temperature":0,',
        "toy.workload.jsonl:2, field temperature: there is no such field; take it out",
    ),
    (
        "workload",
        '"prompt":[1,2,3],',
        "",
        "toy.workload.jsonl:1, field prompt: missing; add it, or record the run again",
    ),
    (
        "workload",
        '"arrival_step":1}',
        '"step":1}',
        "toy.workload.jsonl:3, field step: there is no such field; take it out",
    ),
    (
        "workload",
        '"prompt":[1,2,3]',
        '"prompt":[1,true,3]',
        "toy.workload.jsonl:1, field prompt[1]: "
        f"expected a whole number, 0 or more, found true; {CORRECT}",
    ),
    (
        "workload",
        '"prompt":[1,2,3]',
        '"prompt":{"0":1}',
        f'toy.workload.jsonl:1, field prompt: expected a list, found {{"0":1}}; {CORRECT}',
    ),
    (
        "workload",
        '"cache_salt":"s"',
        '"cache_salt":""',
        "toy.workload.jsonl:2, field cache_salt: "
        f'expected a string that is not empty, found ""; {CORRECT}',
    ),
    (
        "workload",
        '"running"',
        '"all"',
        "toy.workload.jsonl:4, field reset: "
        f'expected one of "idle", "running", found "all"; {CORRECT}',
    ),
    (
        "steps",
        '"total":4',
        '"total":4.0',
        f"toy.steps.jsonl:1, field total: expected a whole number, 0 or more, found 4.0; {CORRECT}",
    ),
    (
        "steps",
        '"total":4',
        '"total":NaN',
        f"toy.steps.jsonl:1: not JSON from column 65 on; {CUT}",
    ),
    (
        "steps",
        '"total":4',
        '"total":4,"total":5',
        'toy.steps.jsonl:1: key "total" stands twice; keep one of the two',
    ),
    (
        "steps",
        '{"b":1,"a":3}',
        '{"b":1,"b":3}',
        'toy.steps.jsonl:1: key "b" stands twice; keep one of the two',
    ),
    (
        "steps",
        '"scheduled":{"b":1,"a":3},',
        "",
        "toy.steps.jsonl:1, field scheduled: missing; add it, or record the run again",
    ),
    (
        "steps",
        '"scheduled":{"b":1,"a":3}',
        '"scheduled":{"b":1,"a":-3}',
        "toy.steps.jsonl:1, field scheduled.a: "
        f"expected a whole number, 0 or more, found -3; {CORRECT}",
    ),
    (
        "steps",
        '"block_ids":[1,2]',
        '"block_ids":[1,-2]',
        "toy.steps.jsonl:1, field new[0].block_ids[1]: "
        f"expected a whole number, 0 or more, found -2; {CORRECT}",
    ),
    (
        "steps",
        '"resumed":false},{',
        '"resumed":0},{',
        f"toy.steps.jsonl:1, field cached[0].resumed: expected true or false, found 0; {CORRECT}",
    ),
    (
        "steps",
        '"step":1,',
        '"step":1,"pass_":null,',
        "toy.steps.jsonl:2, field pass_: there is no such field; take it out",
    ),
    (
        "steps",
        '"sampled":{"a":[2,1],"b":2}',
        '"sampled":{"a":[2,1],"b\\nb":"2"}',
        'toy.steps.jsonl:3, field sampled."b\\nb"[0]: '
        f'expected a whole number, 0 or more, found "2"; {CORRECT}',
    ),
    (
        "steps",
        '"reset":true}\n',
        '"reset":tr',
        f"toy.steps.jsonl:3: the last line has no line end; {CUT}",
    ),
    (
        "steps",
        '"decode","done":["b"]},',
        '"decode","do\n',
        f"toy.steps.jsonl:2: not JSON from column 78 on; {CUT}",
    ),
    (
        "events",
        '"BlockRemoved"',
        '"BlockMoved"',
        f'toy.events.jsonl:1, field events[1].type: unknown event "BlockMoved"; {CORRECT}',
    ),
    (
        "events",
        '"block_hashes":[7]',
        '"block_hashes":["7"]',
        "toy.events.jsonl:1, field events[1].block_hashes[0]: "
        f'expected a hash (a whole number of 64 bits, or 64 hex digits), found "7"; {CORRECT}',
    ),
    (
        "events",
        '{"type":"AllBlocksCleared"}',
        '["AllBlocksCleared"]',
        'toy.events.jsonl:1, field events[2]: expected an object, found ["AllBlocksCleared"]; '
        f"{CORRECT}",
    ),
    (
        "events",
        '"dp_rank":0',
        '"dp_rank":' + "[" * 300 + "]" * 300,
        f"toy.events.jsonl:1: nested too deep; {CORRECT}",
    ),
    (
        "state",
        '["97327f71",[1]]',
        '["97327f71",[1],2]',
        "toy.state.jsonl:1, field cached[0]: "
        f'expected a pair [hash, [blocks]], found ["97327f71",[1],2]; {CORRECT}',
    ),
    (
        "state",
        '"status":"RUNNING"',
        '"status":"LOST"',
        "toy.state.jsonl:1, field reqs.a.status: "
        f'expected one of "WAITING", "RUNNING", "PREEMPTED", found "LOST"; {CORRECT}',
    ),
]


@pytest.mark.parametrize(
    ("kind", "old", "new", "message"), EDITS, ids=[f"{edit[0]}{n}" for n, edit in enumerate(EDITS)]
)
def test_a_hostile_edit_is_refused_with_its_address(
    small: Path, kind: str, old: str, new: str, message: str
) -> None:
    file = small.with_name(f"toy.{kind}.jsonl")
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    assert refusal(small) == message


@pytest.mark.parametrize("number", ["18446744073709551616", "1e999", "1" * 5000])
def test_a_number_that_no_64_bits_hold_is_refused(small: Path, number: str) -> None:
    file = small.with_name("toy.steps.jsonl")
    file.write_text(file.read_text().replace('"total":4', f'"total":{number}'))
    assert refusal(small).startswith("toy.steps.jsonl:1")


@pytest.mark.parametrize("kind", ["workload", "steps", "events"])
def test_a_missing_file_is_named(small: Path, kind: str) -> None:
    small.with_name(f"toy.{kind}.jsonl").unlink()
    assert refusal(small) == (
        f"toy.{kind}.jsonl: there is no such file; "
        "put it there; --workload and --steps may name files elsewhere"
    )


def test_a_folder_in_place_of_a_file_is_named(small: Path) -> None:
    small.with_name("toy.state.jsonl").unlink()
    small.with_name("toy.state.jsonl").mkdir()
    message = refusal(small)
    assert message.startswith("toy.state.jsonl: cannot be read (")
    assert message.endswith("); give a path to a file that can be read")


def test_a_run_that_the_configuration_does_not_name(small: Path) -> None:
    assert refusal(small.with_name("tpy")) == (
        'config.json: no run is named "tpy"; read one of: plain, toy'
    )
    assert refusal(small.with_name("plain")).startswith("plain.workload.jsonl: there is no such")
    with pytest.raises(RecordingError, match="no run is named; give FOLDER/RUN, such as"):
        read_recording(Path())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"watermark":0.5',
            '"watermark":null',
            f"config.json, field toy_runs.toy.watermark: expected a number, found null; {CORRECT}",
        ),
        (
            '"num_gpu_blocks":9',
            '"num_gpu_blocks":9,"num_gpu_blocks (one is the null block)":8',
            'config.json, field toy_runs.toy."num_gpu_blocks (one is the null block)": '
            "given under two names; keep one of the two",
        ),
        (
            '"num_gpu_blocks":9,',
            "",
            "config.json, field toy_runs.toy.num_gpu_blocks: "
            "missing; add it, or record the run again",
        ),
        (
            '"vllm":"0.33.0",',
            "",
            "config.json, field vllm: missing; add it, or record the run again",
        ),
        (
            '{"vllm"',
            '{\n?"vllm"',
            f"config.json:2: not JSON from column 1 on; {CUT}",
        ),
    ],
)
def test_a_hostile_configuration_is_refused(small: Path, old: str, new: str, message: str) -> None:
    file = small.with_name("config.json")
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    assert refusal(small) == message


# --- Every place of every line, one after the other -----------------------------------------------

HOSTILE: tuple[object, ...] = (None, True, -1, 0.5, "", "x", [], [[]], {}, {"": 0}, {"x": None})


def mutants(whole: object, part: object) -> Iterator[tuple[object, object, bytes]]:
    """What stood somewhere in `whole`, what stands there now, and the text of the whole."""
    if isinstance(part, dict):
        places = list(part.items())
    elif isinstance(part, list):
        places = list(enumerate(part))
    else:
        return
    for key, was in places:
        for new in HOSTILE:
            part[key] = new
            yield was, new, orjson.dumps(whole)
        part[key] = was
        yield from mutants(whole, was)


def json_type(value: object) -> str:
    return "number" if type(value) in (int, float) else type(value).__name__


@pytest.mark.parametrize("kind", list(LINES))
def test_whatever_stands_anywhere_is_read_or_refused_in_one_line(small: Path, kind: str) -> None:
    """No other exception comes out, and nothing of another JSON type is taken for what it is not.

    Two places take a second type: null where a value may be absent, and a list of sampled tokens
    for a bare one.
    """
    file = small.with_name(f"toy.{kind}.jsonl")
    tried = refused = 0
    for line in LINES[kind].splitlines():
        whole = orjson.loads(line)
        for was, new, text in mutants(whole, whole):
            file.write_bytes(text + b"\n")
            tried += 1
            error = None
            try:
                read_recording(small)
            except RecordingError as caught:
                error = caught
            if error is None:
                bare = kind == "steps" and was == 2
                assert json_type(new) == json_type(was) or None in (was, new) or bare, text
            else:
                refused += 1
                assert error.line == 1
                assert "\n" not in str(error)
    assert tried > refused > tried / 2


@pytest.mark.parametrize("kind", list(LINES))
def test_a_file_cut_anywhere_but_at_a_line_end_is_refused(small: Path, kind: str) -> None:
    file = small.with_name(f"toy.{kind}.jsonl")
    text = LINES[kind].encode()
    for length in range(1, len(text), 3):
        file.write_bytes(text[:length])
        if not text[:length].endswith(b"\n"):
            message = refusal(small)
            assert message.endswith(f"the last line has no line end; {CUT}")
