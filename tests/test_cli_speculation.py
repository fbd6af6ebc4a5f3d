"""`servecheck speculation`: the theory's numbers, a picture, and clear errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import NoReturn

import pytest

from servecheck.cli import main
from servecheck.cli.speculation import exact
from servecheck.view import curves
from servecheck.view.errors import ViewError

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def called(*args: str | Path) -> tuple[int, str, str]:
        code = main(["speculation", *map(str, args)])
        out, err = capsys.readouterr()
        return code, out, err

    return called


def test_what_it_says(run: Run) -> None:
    code, out, err = run("--alpha", "0.8", "--gamma", "4", "--cost", "0.05")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "α = 0.8, γ = 4, c = 0.05",
        "expected tokens a target pass: 3.362",
        "speed-up: 2.801",
        "best γ: 8, speed-up 3.092",
        "draft length of assisted generation (+2, or −1), in the long run: speed-up 2.887",
        "",
        "   γ   tokens  operations*  speed-up",
        "   0    1.000        1.000     1.000",
        "   1    1.800        1.139     1.714",
        "   2    2.440        1.270     2.218",
        "   3    2.952        1.406     2.567",
        "   4    3.362        1.547     2.801  asked",
        "   5    3.689        1.694     2.951",
        "   6    3.951        1.847     3.040",
        "   7    4.161        2.007     3.082",
        "   8    4.329        2.171     3.092  best",
        "   9    4.463        2.341     3.078",
        "",
        "* a token, in those of the target alone, if c is the draft's share of operations too",
    ]


def test_a_fraction_is_the_decimal(run: Run) -> None:
    decimal = run("--alpha", "0.8", "--gamma", "4", "--cost", ".05", "--json")
    assert run("--alpha", "4/5", "--gamma", "4", "--cost", "1/20", "--json") == decimal
    said = json.loads(decimal[1])
    assert (said["alpha"], said["cost"]) == ("4/5", "1/20")
    assert (said["tokens"], said["best_gamma"], said["plot"]) == (3.3616, 8, None)
    assert said["rows"][4] == {
        key: said[key] for key in ("gamma", "tokens", "operations", "speedup")
    }
    low, high = said["heuristic"]
    assert low <= high <= low + 1e-6 < said["best_speedup"]


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["--alpha", "0.8", "--gamma", "4"], "none, every further draft gains, towards 5.000"),
        (["--alpha", "1", "--gamma", "4"], "none, every further draft gains, without end"),
        (["--alpha", "0.99999", "--gamma", "4", "--cost", "1/9999999"], "above 1000"),
        (["--alpha", "1/2", "--gamma", "4", "--cost", "1/5"],
         "1, speed-up 1.250, and just so γ = 2"),
        (["--alpha", "0.1", "--gamma", "4", "--cost", "0.3"], "0, drafts do not gain where α ≤ c"),
    ],
)  # fmt: skip
def test_where_the_best_is_none_or_not_alone(run: Run, args: list[str], line: str) -> None:
    code, out, _ = run(*args)
    assert code == 0
    assert f"best γ: {line}\n" in out


def test_a_best_gamma_out_of_reach_hides_nothing_else(run: Run, tmp_path: Path) -> None:
    """At α = 0.999 and c = 0.0001 the best γ is above 1,000; what four drafts are worth is told."""
    pytest.importorskip("matplotlib")
    args = ("--alpha", "0.999", "--gamma", "4", "--cost", "0.0001", "--json")
    code, out, _ = run(*args, "--plot", tmp_path / "x.svg")
    told = json.loads(out)
    assert code == 0
    assert (told["best_gamma"], told["best_gamma_above"], told["limit"]) == (None, 1000, None)
    assert told["tokens"] == pytest.approx(sum(0.999**k for k in range(5)))
    assert (tmp_path / "x.svg").exists()


def test_a_long_table_is_cut_to_what_was_asked_for_and_the_best(run: Run) -> None:
    _, out, _ = run("--alpha", "0.99", "--gamma", "1000", "--cost", "0.01", "--json")
    gammas = [row["gamma"] for row in json.loads(out)["rows"]]
    best = json.loads(out)["best_gamma"]
    assert gammas == [*range(9), best - 1, best, best + 1, 999, 1000]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--alpha", "1.2", "--gamma", "4"], "alpha: 6/5 lies outside 0 ≤ alpha ≤ 1; set another"),
        (["--alpha=-0.1", "--gamma", "4"], "alpha: -1/10 lies outside 0 ≤ alpha ≤ 1; set another"),
        (["--alpha", "0.8", "--gamma", "-1"], "gamma: -1 is no whole number in 0 … 1000"),
        (["--alpha", "0.8", "--gamma", "1001"], "gamma: 1001 is no whole number in 0 … 1000"),
        (["--alpha", "0.8", "--gamma", "4", "--cost=-1"], "cost: -1 is less than 0"),
        (["--alpha", "x", "--gamma", "4"], "--alpha: 'x' is no number; write 0.8 or 4/5"),
        (["--alpha", "nan", "--gamma", "4"], "--alpha: 'nan' is no number"),
        (["--alpha", "1e99999999", "--gamma", "4"], "--alpha: '1e99999999' is no number"),
        (["--alpha", "0." + "1" * 60, "--gamma", "4"], "with at most 18 digits"),
        (["--alpha", "1/2", "--gamma", "4", "--cost", "1/0"], "--cost: 1/0 divides by 0"),
        (["--gamma", "4"], "Missing option '--alpha'"),
        (["--alpha", "1/2", "--gamma", "4", "--plot", "x.pdf"], "x.pdf: a plot is a .png or .svg"),
    ],
)
def test_bad_input_is_one_line(run: Run, args: list[str], message: str) -> None:
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


def test_numbers_are_read_as_written() -> None:
    assert exact("--alpha", "0.1") == Fraction(1, 10) != Fraction(0.1)
    assert [exact("--cost", text) for text in ("3", "0.", ".5", "6/8")] == [
        3, 0, Fraction(1, 2), Fraction(3, 4)
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "head"), [("s.png", b"\x89PNG"), ("s.SVG", b"<?xml")])
def test_a_plot(run: Run, tmp_path: Path, name: str, head: bytes) -> None:
    pytest.importorskip("matplotlib")
    place = tmp_path / name
    code, out, _ = run("--alpha", "0.8", "--gamma", "4", "--cost", "0.05", "--plot", place)
    assert code == 0
    assert out.endswith(f"{name}: speed-up against γ\n")
    content = place.read_bytes()
    assert content.startswith(head)
    run("--alpha", "0.8", "--gamma", "4", "--cost", "0.05", "--plot", place)
    assert place.read_bytes() == content, "the same each time"


def test_a_plot_says_what_it_shows() -> None:
    """The legend of an .svg names the curves, and the numbers at γ and at the best γ."""
    pytest.importorskip("matplotlib")
    text = curves.speculation_plot(Fraction(4, 5), 4, Fraction(1, 20), ".svg").decode()
    for said in ("α = 0.8, c = 0.05", "γ = 4, as asked: 2.80", "best, γ = 8: 3.09", "α = 0.9"):
        assert f"<!-- {said} -->" in text


def test_a_plot_without_matplotlib(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> NoReturn:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(curves, "import_module", absent)
    with pytest.raises(ViewError, match=r"a plot needs matplotlib.*servecheck\[view\]"):
        curves.speculation_plot(Fraction(1, 2), 4, Fraction(0), ".png")
    code, out, err = run("--alpha", "1/2", "--gamma", "4", "--plot", tmp_path / "x.png")
    assert (code, out) == (2, "")
    assert "a plot needs matplotlib" in err
    assert not list(tmp_path.iterdir())


def test_a_plot_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    place = tmp_path / "none" / "x.png"
    code, _, err = run("--alpha", "1/2", "--gamma", "4", "--plot", place)
    assert code == 2
    assert "x.png: cannot be written (No such file or directory)" in err
