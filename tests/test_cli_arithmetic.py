"""Stories about `servecheck arithmetic`: what it prints, the pictures, and what it refuses."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import servecheck.cli
from servecheck.cli import main
from servecheck.cli.terminal import Exit
from servecheck.view import charts
from servespec.theory.devices import DEVICES
from servespec.theory.dtypes import DTYPES
from servespec.theory.models import MODELS

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(servecheck.cli, "COMMANDS", ("arithmetic", "replay"))

    def called(*args: str | Path) -> tuple[int, str, str]:
        code = main(["arithmetic", *map(str, args)])
        out, err = capsys.readouterr()
        return code, out, err

    return called


def said(run: Run, *args: str | Path) -> str:
    code, out, err = run(*args)
    assert (code, err) == (Exit.HOLDS, "")
    return out


FIGURES = """\
llama-3-8b on a100-80gb-sxm; bf16 weights, bf16 cache
  parameters                            8,030,261,248
  weights                               16.06 GB of 85.90 GB
  KV cache a token                      131,072 B
  KV cache a sequence                   0.26 GB, 2,000 tokens
  sequences that fit, at most           266
  blocks of 16 that fit, at most        33,301, for 266 sequences
  ridge                                 153.0 FLOP/B
  decode step, batch 32                 11.99 ms, 22.4 FLOP/B: waits for memory
  the same and 4,096 of prompt          226.70 ms, 2830.8 FLOP/B: waits for arithmetic
  pause, in decode steps                18.9
  tokens at the ridge                   233 a step take as long as its memory (linear layers alone)
  decode crosses the ridge              never (levels off at 65.3 FLOP/B); some batch does up \
to contexts of 822
  largest first chunk in 25/50/100 ms   448 / 923 / 1,852
  drafts pay (α 0.8, c 0.05)            at any batch
"""


def test_the_figures_of_the_article(run: Run) -> None:
    assert said(run) == FIGURES


def test_the_figures_as_json(run: Run) -> None:
    told = json.loads(said(run, "--json", "--context", "512"))
    assert told["command"] == "arithmetic"
    assert (told["model"], told["device"], told["tp"]) == ("llama-3-8b", "a100-80gb-sxm", 1)
    assert (told["dtype"], told["kv_dtype"]) == ("bf16", "bf16")
    assert told["flops"] / told["bandwidth"] == told["ridge"]
    assert told["weight_bytes"] == 2 * told["parameters"] == 16_060_522_496
    assert told["decode"]["waits_for"] == "memory"
    assert told["mixed"]["ms"] == pytest.approx(226.6, abs=0.1)
    assert told["crossing"]["batch"] == 406
    assert told["drafts_pay_up_to"] == 292
    assert told["largest_chunk"].keys() == {"25", "50", "100"}


def test_a_split_model_with_a_quantised_cache(run: Run) -> None:
    args = ("--model", "llama-3-70b", "--tp", "4", "--dtype", "fp8", "--kv-dtype", "q4_0")
    out = said(run, *args)
    assert out.startswith("llama-3-70b on a100-80gb-sxm, one of 4 ranks; fp8 weights, q4_0 cache\n")
    assert "  weights                               17.64 GB of 85.90 GB\n" in out
    assert "  KV cache a token                      23,040 B\n" in out


def test_weights_that_do_not_fit_are_told(run: Run) -> None:
    out = said(run, "--model", "llama-3-70b")
    assert "141.11 GB of 85.90 GB: more than there is, see --tp\n" in out
    assert "sequences that fit, at most           0\n" in out


def test_numbers_of_a_device_replaced(run: Run) -> None:
    told = json.loads(
        said(run, "--tflops", "100", "--bandwidth", "1000", "--memory", "20", "--json")
    )
    assert told["ridge"] == 100.0
    assert told["sequences"] == (20 * 10**9 - 16_060_522_496) // (2_000 * 131_072)
    assert told["device"] == "a100-80gb-sxm with 100 TFLOP/s, 1,000 GB/s, 20 GB"
    assert (told["flops"], told["bandwidth"], told["memory"]) == (10**14, 10**12, 2 * 10**10)
    out = said(run, "--bandwidth", "1555.5", "--chunked", "--budgets", "4096")
    assert out.startswith("llama-3-8b on a100-80gb-sxm with 1,555.5 GB/s; bf16 weights")
    less = json.loads(said(run, "--utilisation", "0.9", "--overhead", "1.5", "--json"))
    assert less["blocks"] == int((0.9 * 80 * 2**30 - 16_060_522_496 - 1.5e9) // (16 * 131_072))


def test_a_batch_that_crosses_the_ridge_but_does_not_fit(run: Run) -> None:
    assert (
        "  from batch 5,649 on (levels off at 157.2 FLOP/B); some batch does up to contexts of 822"
        in (said(run, "--context", "800"))
    )
    assert "; but 666 fit\n" in said(run, "--context", "800")
    assert "never, at any context" in said(run, "--bandwidth", "1")


def test_a_prompt_is_no_longer_than_the_model_takes_unless_asked(run: Run) -> None:
    assert json.loads(said(run, "--model", "gpt-j-6b", "--json"))["prompt"] == 2_048


def test_a_full_context_has_no_room_for_drafts(run: Run) -> None:
    assert "drafts pay" not in said(run, "--context", "8192")


CHUNKED = """\
llama-3-8b on a100-80gb-sxm; bf16 weights, bf16 cache: a prompt of 4,096 among 32 users at 2,000; \
a step of theirs alone 11.99 ms
  budget  chunks   longest pause, ms   first token, ms
      16       0              no end             never
      32       0               11.99             never
   2,080       2              117.75            228.46
   2,081       2              117.70            228.46
   4,127       2              226.64            238.90
a larger budget with a shorter pause: 2,080 → 2,081
a larger budget with a later first token: 2,081 → 4,127
"""


def test_chunked_prefill_over_budgets(run: Run) -> None:
    budgets = "4127, 2081,2080,32,16,16"
    assert said(run, "--chunked", "--budgets", budgets) == CHUNKED
    told = json.loads(said(run, "--chunked", "--budgets", budgets, "--json"))
    assert [row["budget"] for row in told["budgets"]] == [16, 32, 2_080, 2_081, 4_127]
    assert [row["users_left_out"] for row in told["budgets"]] == [16, 0, 0, 0, 0]
    assert told["budgets"][0]["pause_ms"] is told["budgets"][1]["first_token_ms"] is None
    assert told["budgets"][3]["chunks"] == [2_049, 2_047]
    assert told["larger_budget_shorter_pause"] == [[2_080, 2_081]]


def test_the_budgets_are_those_from_256_to_16384(run: Run) -> None:
    told = json.loads(said(run, "--chunked", "--prompt", "300", "--context", "20", "--json"))
    assert [row["budget"] for row in told["budgets"]] == [256 << n for n in range(7)]


def test_the_catalogue_names_every_source(run: Run) -> None:
    out, told = said(run, "--list"), json.loads(said(run, "--list", "--json"))
    for kind, entries in (("devices", DEVICES), ("models", MODELS), ("dtypes", DTYPES)):
        assert list(told[kind]) == list(entries)
        for name, entry in entries.items():
            assert told[kind][name]["source"] == entry.source
            assert [line for line in out.splitlines() if line.startswith(f"  {name} ")]
            assert entry.source in out
    assert told["models"]["deepseek-v3"]["kv_bytes_per_token"] == 70_272


# --- pictures ---------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [(), ("--chunked", "--budgets", "16,256,4096")])
def test_a_picture_is_the_same_every_time(run: Run, args: tuple[str, ...], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("a.png", "b.png", "a.svg", "b.svg"):
        assert name in said(run, *args, "--plot", tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_the_roofline_names_its_steps(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")
    said(run, "--plot", tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text(encoding="utf-8")
    for words in (
        "1  decode, batch 1: 8.01 ms",
        "3  decode, batch 32: 12.0 ms",
        "5  batch 32 and a prompt of 4,096: 226.7 ms",
        "ridge 153 FLOP/B",
        "decode levels off at 65 FLOP/B",
        "312 TFLOP/s",
        "arithmetic intensity, FLOP a byte",
    ):
        assert words in text
    assert "8,000" not in text


def test_a_chart_of_what_never_ends_is_empty(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    said(run, "--chunked", "--budgets", "5", "--plot", tmp_path / "x.png")
    assert (tmp_path / "x.png").exists()


@pytest.mark.parametrize("args", [(), ("--chunked", "--budgets", "64")])
def test_a_picture_without_matplotlib(
    run: Run, args: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> ModuleType:
        if name.startswith("matplotlib"):
            raise ImportError(f"No module named {name!r}")
        return importlib.import_module(name)

    monkeypatch.setattr(charts, "import_module", absent)
    code, out, err = run(*args, "--plot", tmp_path / "x.png")
    assert (code, out) == (Exit.BAD_INPUT, "")
    assert "a chart needs matplotlib" in err
    assert "pip install 'servecheck[view]'" in err
    assert not list(tmp_path.iterdir())


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            "--model lama-3-8b",
            "model: 'lama-3-8b' is not known; the nearest: llama-3-8b, llama-3.1",
        ),
        (
            "--device h100",
            "device: 'h100' is not known; the nearest: h100-sxm, h100-pcie",
        ),
        (
            "--device A100",
            "device: 'A100' is not known; the nearest: a100-80gb-sxm, a100-80gb-pcie, a100-40gb",
        ),
        ("--dtype q4_2", "dtype: 'q4_2' is not known; the nearest: "),
        ("--kv-dtype x", "dtype: 'x' is not known; choose of f32, bf16, "),
        ("--context 8193", "context: 8193 tokens are beyond the 8192 of llama-3-8b; give at most"),
        ("--context 0", "context: 0 is no whole number from 1"),
        ("--prompt 8193", "prompt: 8193 tokens are beyond the 8192 of llama-3-8b"),
        ("--batch 0", "batch: 0 is no whole number from 1"),
        (
            "--batch 9999999999999999999",
            "batch: what was given is no whole number from 1 to",
        ),
        ("--tp 3", "tp: 3 ranks cannot share 32 query heads; choose a divisor of 32"),
        ("--bandwidth 0", "bandwidth: 0 of 'a100-80gb-sxm' is no whole number above 0"),
        ("--tflops 0", "flops: 0 of 'a100-80gb-sxm' is no whole number above 0"),
        ("--tflops nan", "--tflops: nan is no number up to 1,000,000,000"),
        ("--bandwidth 1e300", "--bandwidth: 1e+300 is no number up to 1,000,000,000"),
        ("--memory -1", "memory: -1000000000 of 'a100-80gb-sxm' is no whole number above 0"),
        ("--utilisation 1.1", "utilisation: 1.1 lies outside 0 < utilisation ≤ 1"),
        ("--overhead -2", "overhead: -2,000,000,000 bytes is below 0"),
        ("--block-size 0", "block_size: 0 is no whole number from 1"),
        ("--alpha 1.5", "alpha: 3/2 lies outside 0 ≤ alpha ≤ 1"),
        ("--draft-cost -1", "cost: -1 is less than 0"),
        ("--budgets 256", "--budgets belongs to --chunked"),
        ("--chunked --budgets 256,x", "--budgets: '256,x' is no list of whole numbers such as"),
        ("--chunked --budgets 0", "budget: 0 is no whole number from 1"),
        ("--chunked --context 1", "context: 1 is no whole number from 2"),
        ("--chunked --batch 1025", "batch: 1025 users are more than the machine is asked to hold"),
        ("--plot x.pdf", "x.pdf: a plot is a .png or .svg; name the file so"),
    ],
)
def test_bad_input_is_one_line(run: Run, args: str, message: str) -> None:
    code, out, err = run(*args.split())
    assert (code, out) == (Exit.BAD_INPUT, "")
    assert err.startswith(f"error: {message}")
    assert err.count("\n") == 1


def test_a_place_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    code, out, err = run("--plot", tmp_path / "nowhere" / "x.png")
    assert (code, out) == (Exit.BAD_INPUT, "")
    assert "x.png: cannot be written (No such file or directory)" in err
