"""One stream under several policies: `servecheck compare`, its figures and its picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attrs import evolve

from servecheck.cli import main
from servecheck.miniature.batching import SLOTS, batch_line, draw_stream
from servecheck.miniature.chance import Rng
from servecheck.recording import RecordingError
from servecheck.view.gantt import Chart, gantt
from servecheck.view.marks import Rect, Text
from servecheck.workload.arrivals import Drawing, drawn, read_stream
from servecheck.workload.chart import Sign, Spell, lanes, spells, text
from servecheck.workload.serve import (
    Latency,
    Order,
    figures,
    latency_of,
    order,
    served,
    unhindered,
)
from servespec.actions import Submit
from servespec.config import Config
from servespec.errors import SpecError
from servespec.machine import Machine
from servespec.policy import MINIATURE, PROFILES, STATIC, VLLM_0_33, Policy, prioritised
from servespec.theory.stream import Arrival, Stream, run

ROOT = Path(__file__).resolve().parents[1]


def of(*requests: tuple[int, int, int]) -> Stream:
    """(arrival, prompt, output), lengths in tokens."""
    return Stream(
        tuple(Arrival(at, Submit(f"r{i}", (i,) * p, n)) for i, (at, p, n) in enumerate(requests))
    )


# --- the engine and the specification --------------------------------------------------------


@pytest.mark.parametrize("policy", [*PROFILES.values(), prioritised(VLLM_0_33)])
@pytest.mark.parametrize("usable", [5, 8, 30])
def test_the_engine_serves_as_the_machine_does(policy: Policy, usable: int) -> None:
    """Event for event, with memory short and plenty."""
    stream = drawn(
        Drawing(requests=8, gap=(0, 2), prompt=(1, 8), prefix=(1, 4), families=2, output=(1, 6)), 3
    )
    config = evolve(unhindered(stream, 3, 4, policy), num_blocks=usable + policy.first_block)
    spec = run(Machine(config, policy), stream).steps
    assert served(config, policy, stream) == spec


def test_the_article_s_stream_gives_the_article_s_figures() -> None:
    rng = Rng()
    stream = draw_stream(rng)
    for policy in (STATIC, MINIATURE):
        line = batch_line(stream, policy)
        mine = of(*((a.step, a.prompt, a.output) for a in stream))
        config = unhindered(mine, SLOTS, 16, policy)
        found = figures(mine, served(config, policy, mine), SLOTS)
        assert found.latency is not None
        assert (found.counts.steps, found.latency.mean, found.utilization) == (
            line.steps,
            line.mean_latency,
            line.utilization,
        )


def test_a_run_that_stands_still_is_given_up() -> None:
    """A prompt that fits no pool, under a policy that queues it."""
    stream = of((0, 4, 1), (1, 1, 1))
    steps = served(Config(3, 1, 8, 8, 2), VLLM_0_33, stream)
    found = figures(stream, steps, 2)
    assert (found.ended, found.left, found.latency) == (0, 2, None)
    assert len(steps) < 4


def test_who_is_refused_is_neither_ended_nor_left() -> None:
    stream = of((0, 4, 1), (1, 1, 1))
    found = figures(stream, served(Config(2, 1, 8, 8, 2), MINIATURE, stream), 2)
    assert (found.ended, found.left, found.counts.refusals) == (1, 0, 1)


# --- figures ---------------------------------------------------------------------------------


def test_percentiles_are_values_of_requests() -> None:
    assert latency_of([4, 1, 3, 2]) == Latency(2.5, 2, 4)
    assert latency_of(list(range(1, 201))) == Latency(100.5, 100, 198)
    assert latency_of([7]) == Latency(7, 7, 7)
    assert latency_of([]) is None


def test_figures_by_hand() -> None:
    """Two slots: r0 writes three tokens from step 0, r1 one from step 1 on."""
    stream = of((0, 1, 3), (1, 1, 1))
    config = unhindered(stream, 2, 16, MINIATURE)
    continuous, static = (served(config, p, stream) for p in (MINIATURE, STATIC))
    assert text("x", continuous) == ("x  r0 |###|", "   r1 | # |")
    assert text("x", static) == ("x  r0 |### |", "   r1 | ..#|")
    one, two = figures(stream, continuous, 2), figures(stream, static, 2)
    assert (one.counts.steps, one.latency, one.utilization) == (3, Latency(2, 1, 3), 4 / 6)
    assert (two.counts.steps, two.latency, two.utilization) == (4, Latency(3, 3, 3), 4 / 8)
    assert order(continuous, static) == Order(1, 0, 1, 0)
    assert order(static, continuous) == Order(0, 1, 0, 1)


# --- streams ---------------------------------------------------------------------------------


def test_a_drawn_stream_is_a_function_of_its_seed() -> None:
    how = Drawing(requests=20)
    assert drawn(how, 5) == drawn(how, 5) != drawn(how, 6)
    arrivals = drawn(how, 5).arrivals
    assert len(arrivals) == 20
    assert all(16 <= len(a.submit.prompt) <= 128 for a in arrivals)
    assert all(8 <= a.submit.max_tokens <= 64 for a in arrivals)
    assert len({a.submit.prompt[:8] for a in arrivals}) <= how.families


def test_a_range_has_an_order() -> None:
    with pytest.raises(SpecError, match="output: 5 to 4 is no range from 1 on"):
        Drawing(output=(5, 4))
    with pytest.raises(SpecError, match="prompt: 0 to 4 is no range from 1 on"):
        Drawing(prompt=(0, 4))


def test_the_workload_of_a_recording_is_a_stream() -> None:
    stream = read_stream(ROOT / "traces/vllm-0.33.0/toy_maxseqs.workload.jsonl")
    assert len(stream.arrivals) > 10


GOOD = '{"id": "a", "arrival_step": 1, "prompt": [1], "max_tokens": 2}\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "s.jsonl: it has no request; give at least one line"),
        (
            GOOD + '{"ids": ["a"], "when": "before", "abort": 1}\n',
            "s.jsonl:2",
        ),
        (
            GOOD + '{"id": "b", "arrival_step": 0, "prompt": [1], "max_tokens": 2}\n',
            "s.jsonl:2: request 'b': arrives at step 0, after one of step 1; sort the stream",
        ),
        (GOOD.replace("[1]", "[]"), "s.jsonl:1: request 'a': the prompt is empty; give at least"),
        (GOOD.replace("2}", "true}"), "s.jsonl:1, field max_tokens: "),
        (GOOD.replace('"max_tokens": 2', '"max_token": 2'), "s.jsonl:1"),
        (GOOD[:-1], "s.jsonl:1: the last line has no line end"),
        (GOOD + GOOD, "s.jsonl:2: request 'a': comes twice; give each an id of its own"),
    ],
)
def test_a_stream_that_is_none_is_refused_by_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(text)
    with pytest.raises(RecordingError) as refused:
        read_stream(path)
    assert said in str(refused.value)


def test_a_line_that_is_no_request_is_named() -> None:
    path = ROOT / "traces/vllm-0.33.0/toy_reset.workload.jsonl"
    with pytest.raises(RecordingError, match="the line is no request but a reset; a stream has"):
        read_stream(path)


def test_an_id_that_comes_twice_far_apart_is_found(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(GOOD + GOOD.replace('"a"', '"b"') + GOOD)
    with pytest.raises(RecordingError, match="request 'a': comes twice"):
        read_stream(path)


# --- charts ----------------------------------------------------------------------------------


def preempting() -> tuple[Stream, Config]:
    """Three blocks of one token: r1 is sent back, and comes back when r0 has left."""
    return of((0, 1, 3), (1, 1, 2)), Config(3, 1, 8, 8, 2)


def test_who_sits_where() -> None:
    stream, config = preempting()
    steps = served(config, MINIATURE, stream)
    assert text("", steps) == ("  r0 |### |", "  r1 | #x#|")
    assert lanes(steps)["r1"] == (Sign.ABSENT, Sign.COMPUTES, Sign.SENT_BACK, Sign.COMPUTES)
    assert spells(steps) == (
        Spell(0, "r0", 0, 3, sent_back=False),
        Spell(1, "r1", 1, 2, sent_back=True),
        Spell(0, "r1", 3, 4, sent_back=False),
    )


def test_no_slot_holds_two_at_once() -> None:
    stream = drawn(Drawing(requests=30, gap=(0, 2)), 1)
    config = evolve(unhindered(stream, 5, 16, VLLM_0_33), num_blocks=20)
    found = spells(served(config, VLLM_0_33, stream))
    assert any(spell.sent_back for spell in found)
    for one in found:
        assert one.slot < 5
        for two in found:
            apart = one.end <= two.start or two.end <= one.start
            assert one is two or one.slot != two.slot or apart


def test_a_picture_has_a_bar_for_each_spell() -> None:
    stream, config = preempting()
    steps = served(config, MINIATURE, stream)
    drawing = gantt("t", [Chart("MINIATURE", "said", steps)], 2)
    tips = [m.tip for m in drawing.marks if isinstance(m, Rect) and ": slot" in m.tip]
    assert tips == [
        "r0: slot 0, steps 0 to 2, then left",
        "r1: slot 1, steps 1 to 1, then sent back",
        "r1: slot 0, steps 3 to 3, then left",
    ]
    words = {m.text for m in drawing.marks if isinstance(m, Text)}
    assert {"t", "MINIATURE", "said", "slot 0", "slot 1", "r0", "waiting"} <= words
    assert all(m.x + m.width <= drawing.width for m in drawing.marks if isinstance(m, Rect))


# --- the command -----------------------------------------------------------------------------


def test_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--requests", "40", "--seed", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "40 requests (drawn, seed 0), engine fast, 8 slots"
    assert lines[3].split() == ["MINIATURE", "STATIC"]
    assert [line.split()[0] for line in lines[4:8]] == ["steps", "ended", "refused", "not"]
    assert "  starts: 39 earlier, 0 later" in lines
    assert max(map(len, lines)) <= 100


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--policy", "VLLM_0_33", "--policy", "RESERVED", "--blocks", "17", "--json"]
    assert main(["compare", *args]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["engine"], told["requests"]) == ("holds", "fast", 40)
    paged, reserved = told["policies"]
    assert (paged["policy"], reserved["policy"]) == ("VLLM_0_33", "RESERVED")
    assert paged["config"]["num_blocks"] == reserved["config"]["num_blocks"] + 1
    assert paged["counts"]["preemptions"] > 0 == reserved["counts"]["preemptions"]
    assert paged["counts"]["steps"] < reserved["counts"]["steps"]
    assert told["order"][0]["ends_later"] == 0


def test_a_stream_from_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "traces/vllm-0.33.0/toy_maxseqs.workload.jsonl"
    assert main(["compare", str(path), "--block-size", "4", "--slots", "3"]) == 0
    assert f"({path})" in capsys.readouterr().out


def test_a_request_that_never_ends_is_undetermined(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text('{"id": "a", "arrival_step": 0, "prompt": [1, 2, 3], "max_tokens": 1}\n')
    args = ["--policy", "VLLM_0_33", "--policy", "MINIATURE", "--blocks", "2", "--block-size", "1"]
    assert main(["compare", str(path), *args]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert ["not", "ended", "1", "0"] in [line.split() for line in lines]
    assert ["refused", "0", "1"] in [line.split() for line in lines]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--policy", "FASTEST", "--policy", "STATIC"], "--policy FASTEST: no such profile; take"),
        (["--policy", "STATIC"], "give two or more different policies"),
        (["--policy", "STATIC", "--policy", "STATIC"], "give two or more different policies"),
        (
            ["--policy", "STATIC", "--policy", "MINIATURE", "--policy", "STATIC"],
            "give two or more different policies",
        ),
        (["--slots", "9" * 20], "blocks are more than 10,000,000; give fewer --blocks or --slots"),
        (["--blocks", "9" * 20], "blocks are more than 10,000,000; give fewer --blocks or"),
        (["--requests", "9" * 9], "tokens are more than 100,000,000 tokens; give fewer --requests"),
        (["--plot", "x.gif"], "x.gif: what to draw is told by the ending; give an .svg or a .png"),
        (["--output", "9", "3"], "output: 9 to 3 is no range from 1 on; give the least first"),
        (["nowhere.jsonl"], "nowhere.jsonl: there is no such file; name another, or none, and"),
        (["--plot", "/nowhere/x.svg"], "/nowhere/x.svg: cannot be written"),
    ],
)
def test_what_cannot_be_compared_is_said_in_a_line(
    args: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_the_picture_in_the_docs_is_current(tmp_path: Path) -> None:
    """`servecheck compare --plot docs/compare.svg`"""
    out = tmp_path / "compare.svg"
    assert main(["compare", "--plot", str(out)]) == 0
    assert out.read_text() == (ROOT / "docs/compare.svg").read_text()


def test_a_picture_in_pixels(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "c.png"
    assert main(["compare", "--requests", "5", "--plot", str(out)]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")


def test_the_docs_tell_the_figures_of_their_picture(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    one, two = told["policies"]
    said = (
        f"{one['counts']['steps']} steps instead of {two['counts']['steps']}, a mean latency of "
        f"{one['latency']['mean']:.1f} steps instead of {two['latency']['mean']:.1f}; "
        f"{told['order'][0]['ends_earlier']} of 40 requests end earlier, none later"
    )
    assert told["order"][0]["ends_later"] == 0
    assert said in " ".join((ROOT / "docs/batching.md").read_text().split())
