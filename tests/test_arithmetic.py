"""Stories about memory and roofline: published counts and figures come out to the printed digit,
and closed forms agree with going through the cases.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest
from attrs import evolve

from servespec.errors import ConfigError
from servespec.theory.catalogue import found
from servespec.theory.devices import DEVICES, Device, device
from servespec.theory.dtypes import DTYPES, dtype
from servespec.theory.memory import (
    Deployment,
    blocks_that_fit,
    cache_memory,
    kv_bytes,
    kv_bytes_per_token,
    overhead_behind,
    sequences_that_fit,
    weight_bytes,
)
from servespec.theory.models import MODELS, model
from servespec.theory.roofline import (
    Chunk,
    crossing,
    decodes,
    largest_chunk,
    longest_crossing,
    milliseconds,
    ridge_tokens,
    step_time,
    truncated,
    work,
)
from servespec.theory.shapes import Grouped, Model

A100 = device("a100-80gb-sxm")
LLAMA = Deployment(model("llama-3-8b"), A100)
MS = Fraction(1, 1000)


def ms(d: Deployment, *step: Chunk) -> float:
    return milliseconds(step_time(d, step))


# --- devices and models -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "ridge"),
    [
        ("a100-80gb-sxm", "153.0"),
        ("h100-sxm", "295.3"),
        ("h100-pcie", "378.0"),
        ("h200-sxm", "206.1"),
        ("b200", "281.2"),
        ("l4", "403.3"),
        ("mi300x", "246.7"),
    ],
)
def test_the_ridge_of_a_device(name: str, ridge: str) -> None:
    assert f"{float(device(name).ridge):.1f}" == ridge


def test_the_rates_of_the_devices() -> None:
    """TFLOP/s in dense bf16, GB/s, GiB, as the sources print them; the last one as a card said."""
    told = {d.name: (d.flops / 1e12, d.bandwidth / 1e9, d.memory / 2**30) for d in DEVICES.values()}
    assert told.pop("rtx-4090") == (165.2, 1_008, 25_250_627_584 / 2**30)
    assert told == {
        "a100-80gb-sxm": (312, 2_039, 80),
        "a100-80gb-pcie": (312, 1_935, 80),
        "a100-40gb-sxm": (312, 1_555, 40),
        "h100-sxm": (989.4, 3_350, 80),
        "h100-pcie": (756, 2_000, 80),
        "h200-sxm": (989.4, 4_800, 141),
        "b200": (2_250, 8_000, 180),
        "gb200": (2_500, 8_000, 180),
        "l4": (121, 300, 24),
        "mi300x": (1_307.4, 5_300, 192),
    }


def test_every_constant_has_a_name_and_a_source() -> None:
    for entry in DEVICES.values():
        assert device(entry.name) is entry
        assert len(entry.source) > 10
    for shape in MODELS.values():
        assert model(shape.name) is shape
        assert len(shape.source) > 10
    for form in DTYPES.values():
        assert dtype(form.name) is form
        assert len(form.source) > 10


@pytest.mark.parametrize(
    ("name", "parameters", "kv_bytes_a_token"),
    [
        ("llama-3-8b", 8_030_261_248, 131_072),
        ("llama-3.1-8b", 8_030_261_248, 131_072),
        ("llama-3-70b", 70_553_706_496, 327_680),
        ("llama-3.1-70b", 70_553_706_496, 327_680),
        ("llama-2-7b", 6_738_415_616, 524_288),
        ("llama-2-13b", 13_015_864_320, 819_200),
        ("llama-2-70b", 68_976_648_192, 327_680),
        ("mistral-7b-v0.1", 7_241_732_096, 131_072),
        ("gpt-j-6b", 6_050_882_784, 458_752),
        ("falcon-7b", 6_921_720_704, 8_192),
        ("qwen2.5-0.5b", 494_032_768, 12_288),
        ("qwen2.5-1.5b", 1_543_714_304, 28_672),
        ("qwen2.5-3b", 3_085_938_688, 36_864),
        ("qwen2.5-7b", 7_615_616_512, 57_344),
        ("qwen2.5-14b", 14_770_033_664, 196_608),
        ("qwen2.5-32b", 32_763_876_352, 262_144),
        ("qwen2.5-72b", 72_706_203_648, 327_680),
        ("qwen3-0.6b", 596_049_920, 114_688),
        ("qwen3-1.7b", 1_720_574_976, 114_688),
        ("qwen3-4b", 4_022_468_096, 147_456),
        ("qwen3-8b", 8_190_735_360, 147_456),
        ("qwen3-14b", 14_768_307_200, 163_840),
        ("qwen3-32b", 32_762_123_264, 262_144),
    ],
)
def test_parameters_and_cache_from_the_shape(
    name: str, parameters: int, kv_bytes_a_token: int
) -> None:
    d = Deployment(model(name), A100)
    assert d.model.parameters() == parameters == d.model.active()
    assert isinstance(d.model.parameters(), int), "exactly, and so no float"
    assert kv_bytes_per_token(d) == kv_bytes_a_token


def test_the_longest_text_of_a_model() -> None:
    """In units of 1,024 tokens: as the models' cards and configurations say."""
    told: dict[float, set[str]] = {}
    for name in MODELS:
        told.setdefault(model(name).context / 1_024, set()).add(name)
    assert told == {
        2: {"gpt-j-6b", "falcon-7b"},
        4: {"llama-2-7b", "llama-2-13b", "llama-2-70b"},
        8: {"llama-3-8b", "llama-3-70b"},
        32: {"mistral-7b-v0.1", "mistral-7b-v0.3"} | {f"qwen2.5-{b}b" for b in ("0.5", "1.5", "3")},
        40: {f"qwen3-{b}b" for b in ("0.6", "1.7", "4", "8", "14", "32")},
        128: {"llama-3.1-8b", "llama-3.1-70b"} | {f"qwen2.5-{b}b" for b in (7, 14, 32, 72)},
        160: {"deepseek-v3"},
    }


def test_mistral_with_the_larger_vocabulary() -> None:
    assert f"{model('mistral-7b-v0.3').parameters():.4g}" == "7.248e+09"


def test_a_latent_cache_is_71_times_smaller_than_that_of_its_heads() -> None:
    d = Deployment(model("deepseek-v3"), A100)
    assert kv_bytes_per_token(d) == 70_272 == 2 * 35_136
    heads = 61 * 128 * ((128 + 64) + 128) * 2  # keys with their rotary part, and values
    assert heads == 4_997_120
    assert round(heads / kv_bytes_per_token(d)) == 71


def test_a_latent_attends_with_its_own_width() -> None:
    """A score over latent and rotary key, a value over the latent, 128 heads; a rank has some."""
    attention = model("deepseek-v3").attention
    assert attention.pair_flops(1) == 128 * (2 * (512 + 64) + 2 * 512) == 278_528
    assert attention.pair_flops(8) * 8 == attention.pair_flops(1)
    d = Deployment(model("deepseek-v3"), A100)
    assert work(d, decodes(1, 1_000)).attention == 61 * 1_000 * 278_528


def test_a_mixture_of_experts_meets_a_twentieth_of_its_parameters() -> None:
    """37e9 are said to be active: 36.6 without the input embedding, 37.6 with it."""
    deepseek = model("deepseek-v3")
    assert deepseek.parameters() == 671_026_419_200
    embedding = deepseek.vocabulary * deepseek.width
    assert round((deepseek.active() - embedding) / 1e9) == 37
    assert f"{deepseek.active() / 1e9:.1f}" == "37.6"


def test_names_are_forgiven_their_spelling_and_offered() -> None:
    assert model(" Llama 3_8B ") is model("llama-3-8b")
    with pytest.raises(ConfigError, match=r"^model: 'lama3-8b' is not known; the nearest: llama-3"):
        model("lama3-8b")
    with pytest.raises(ConfigError, match=r"'tpu' is not known; choose of a100-80gb-sxm, .*4090$"):
        device("tpu")
    with pytest.raises(ConfigError, match=r"^dtype: 'q4' is not known; the nearest: q4_1, q4_0"):
        dtype("q4")


def test_of_no_name_those_are_offered_that_begin_so_or_are_spelt_alike() -> None:
    """All that begin with it, however many; else three at most, of which half the letters are the
    same; else all there are."""
    begun = {name: name for name in ("ab-1", "cab", "ab-2", "ab-3", "ab-4")}
    with pytest.raises(ConfigError, match=r"thing: 'ab' .* nearest: ab-1, ab-2, ab-3, ab-4$"):
        found("thing", "ab", begun)
    half = {name: name for name in ("abxy", "zzzz")}
    with pytest.raises(ConfigError, match=r"nearest: abxy$"):
        found("thing", "abcd", half)
    many = {name: name for name in ("abc1", "abc2", "abc3", "abc4", "abc5")}
    with pytest.raises(ConfigError, match=r"nearest: \w+, \w+, \w+$"):
        found("thing", "abcd", many)
    with pytest.raises(ConfigError, match=r"' ' is not known; choose of abxy, zzzz$"):
        found("thing", " ", half)


@pytest.mark.parametrize("field", ["flops", "bandwidth", "memory"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_a_device_without_a_rate_is_none(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"^{field}: .* is no whole number above 0"):
        evolve(A100, **{field: value})  # type: ignore[arg-type]  # what is wrong is the point


# --- memory -----------------------------------------------------------------------------------


def test_seventy_billion_parameters_take_140_gigabytes() -> None:
    assert 70 * 10**9 * dtype("bf16").bytes == 140 * 10**9
    llama2, llama3 = (Deployment(model(n), A100) for n in ("llama-2-70b", "llama-3-70b"))
    assert f"{float(weight_bytes(llama2)) / 1e9:.1f}" == "138.0"
    assert f"{float(weight_bytes(llama3)) / 1e9:.1f}" == "141.1"
    assert weight_bytes(llama2) > A100.memory
    assert cache_memory(llama2) < 0
    assert sequences_that_fit(llama2, 1) == 0 == blocks_that_fit(llama2)


def test_grouped_queries_take_a_quarter_of_the_bytes() -> None:
    shape = LLAMA.model.attention
    assert isinstance(shape, Grouped)
    mha = evolve(LLAMA, model=evolve(LLAMA.model, attention=evolve(shape, kv_heads=32)))
    mqa = evolve(LLAMA, model=evolve(LLAMA.model, attention=evolve(shape, kv_heads=1)))
    assert kv_bytes_per_token(LLAMA) * 4 == kv_bytes_per_token(mha) == 524_288
    assert kv_bytes_per_token(mqa) * 8 == kv_bytes_per_token(LLAMA)
    assert kv_bytes_per_token(Deployment(model("falcon-7b"), A100)) == 2 * 32 * 64 * 2


def test_a_sliding_window_stops_the_cache() -> None:
    mistral = Deployment(model("mistral-7b-v0.1"), A100)
    assert kv_bytes(mistral, 4_096) == 4_096 * 131_072
    assert kv_bytes(mistral, 4_097) == kv_bytes(mistral, 32_768) == kv_bytes(mistral, 4_096)
    half = evolve(mistral, model=evolve(mistral.model, windowed_layers=16))
    assert kv_bytes(half, 8_192) == Fraction(3, 4) * 8_192 * 131_072


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("f32", 32),
        ("f16", 16),
        ("bf16", 16),
        ("fp8", 8),
        ("q8_0", Fraction(17, 2)),
        ("q5_1", 6),
        ("q5_0", Fraction(11, 2)),
        ("q4_1", 5),
        ("q4_0", Fraction(9, 2)),
        ("iq4_nl", Fraction(9, 2)),
        ("int4", 4),
    ],
)
def test_bits_of_a_number_with_its_share_of_the_block(name: str, bits: Fraction) -> None:
    assert dtype(name).bytes * 8 == bits
    d = evolve(LLAMA, weights=dtype(name), cache=dtype(name))
    assert kv_bytes_per_token(d) == 65_536 * bits / 8
    assert weight_bytes(d) == 8_030_261_248 * bits / 8


def test_a_row_that_fills_no_block_has_no_such_cache() -> None:
    odd = evolve(LLAMA.model, attention=Grouped(1, 1, 80))
    assert kv_bytes_per_token(Deployment(odd, A100)) == 32 * 2 * 80 * 2
    with pytest.raises(ConfigError, match=r"^KV cache: 80 numbers do not fill blocks of 32 \(q4_0"):
        Deployment(odd, A100, cache=dtype("q4_0"))


def test_what_an_rtx_4090_reported_is_less_than_what_fits() -> None:
    """vLLM 0.19.0, Llama-3.1-8B in bf16, blocks of 16, utilisation 0.9: 2,588 blocks."""
    d, part = Deployment(model("llama-3.1-8b"), device("rtx-4090")), Fraction(9, 10)
    assert blocks_that_fit(d, 16, part) == 3_178
    more_than, at_most = overhead_behind(d, 2_588, 16, part)
    assert (round(float(more_than) / 1e6), round(float(at_most) / 1e6)) == (1_236, 1_238)
    assert blocks_that_fit(d, 16, part, at_most) == 2_588
    assert blocks_that_fit(d, 16, part, more_than) == 2_589


def test_whole_blocks_hold_fewer_sequences() -> None:
    """68 tokens fit: 4 sequences of 17, or one block of 16 for each begun, and the null block."""
    small = Device("small", 1, 1, 16_060_522_496 + 68 * 131_072, "made up")
    d = evolve(LLAMA, device=small)
    assert blocks_that_fit(d, 16) == 4
    assert sequences_that_fit(d, 17) == 4
    assert sequences_that_fit(d, 17, block_size=16) == 1
    assert sequences_that_fit(d, 16, block_size=16) == 3
    assert sequences_that_fit(d, 17, overhead=131_072) == 3
    assert sequences_that_fit(d, 16, block_size=16, overhead=4 * 131_072) == 3
    assert sequences_that_fit(d, 16, block_size=16, overhead=5 * 131_072) == 2


def test_blocks_are_of_sixteen_and_nothing_is_kept_unless_one_says_so() -> None:
    """64 tokens and not a byte more: four blocks of 16, which a reported 4 leaves nothing behind
    of, and 5 more than there is."""
    chip = Device("small", 1, 1, 16_060_522_496 + 64 * 131_072, "made up")
    d = evolve(LLAMA, device=chip)
    assert cache_memory(d) == 64 * 131_072
    assert blocks_that_fit(d) == 4
    assert sequences_that_fit(d, 16) == 4
    assert overhead_behind(d, 4) == (Fraction(-16 * 131_072), Fraction(0))
    assert overhead_behind(d, 3) == (Fraction(0), Fraction(16 * 131_072))


def test_no_block_no_sequence() -> None:
    """Weights that do not fit leave no block, and not even the null block."""
    d = Deployment(model("llama-2-70b"), A100)
    assert blocks_that_fit(d) == 0
    assert sequences_that_fit(d, 1, block_size=16) == 0


@pytest.mark.parametrize(
    ("utilisation", "overhead", "named"),
    [(Fraction(0), 0, "utilisation"), (Fraction(11, 10), 0, "utilisation"), (1, -1, "overhead")],
)
def test_memory_that_makes_no_sense(utilisation: Fraction, overhead: int, named: str) -> None:
    with pytest.raises(ConfigError, match=f"^{named}: "):
        cache_memory(LLAMA, utilisation, overhead)


def test_a_context_beyond_the_models() -> None:
    kv_bytes(LLAMA, 8_192)
    with pytest.raises(ConfigError, match=r"8193 tokens are beyond the 8192 of llama-3-8b; give"):
        kv_bytes(LLAMA, 8_193)
    with pytest.raises(ConfigError, match=r"^context: 8193 tokens"):
        work(LLAMA, (Chunk(8_000, 193),))
    with pytest.raises(ConfigError, match=r"^context: 0 is no whole number from 1"):
        kv_bytes(LLAMA, 0)


@pytest.mark.parametrize("value", [True, 1.5, "7", 0, -1, 10**12 + 1, -(10**12) - 1])
def test_what_is_no_whole_number_is_refused(value: object) -> None:
    """What is shown of it is a number that is not too long."""
    shown = repr(value) if value in (True, 0, -1) else "what was given"
    with pytest.raises(ConfigError, match=f"^tokens: {shown} is no whole number from 1 to 1,0.*0"):
        Chunk(0, value)  # type: ignore[arg-type]  # what is wrong is the point


def test_the_largest_numbers_are_whole() -> None:
    assert Chunk(0, 10**12).tokens == 10**12
    with pytest.raises(ConfigError, match=r"^batch: -1000000000000 is no whole number from 1"):
        Chunk(0, 1, -(10**12))


# --- tensor parallelism -----------------------------------------------------------------------


def test_ranks_share_all_but_the_norms() -> None:
    norms = (2 * 32 + 1) * 4096
    for tp in (1, 2, 4, 8):
        ranks = tp * LLAMA.model.parameters(tp)
        assert ranks == LLAMA.model.parameters() + (tp - 1) * norms
        assert tp * kv_bytes_per_token(evolve(LLAMA, tp=tp)) == 131_072


def test_more_ranks_than_key_value_heads_hold_copies() -> None:
    sixteen = evolve(LLAMA, tp=16)
    assert 16 * kv_bytes_per_token(sixteen) == 2 * 131_072
    copies = 8 * 2 * 128 * 4096 * 32  # eight more keys' and values' projections
    norms = (2 * 32 + 1) * 4096
    assert 16 * LLAMA.model.parameters(16) == LLAMA.model.parameters() + 15 * norms + copies


def test_the_vocabulary_is_padded() -> None:
    """Eleven tokens over two ranks: six rows of the head and six biases on each."""
    shape = evolve(TOY, vocabulary=11, head_bias=True)
    assert shape.parameters() - TOY.parameters() == 2 * 8 + 11
    plain = evolve(shape, head_bias=False)
    assert shape.parameters(2) - plain.parameters(2) == 6
    assert plain.parameters(2) - evolve(plain, vocabulary=12).parameters(2) == 0
    assert isinstance(shape.parameters(2), int)


def test_a_latent_is_on_every_rank() -> None:
    d = Deployment(model("deepseek-v3"), A100, tp=8)
    assert kv_bytes_per_token(d) == 70_272


@pytest.mark.parametrize(
    ("name", "tp", "what"),
    [
        ("llama-3-8b", 3, "3 ranks cannot share 32 query heads; choose a divisor of 32"),
        ("llama-2-13b", 16, "16 ranks cannot share 40 query heads"),
        ("qwen2.5-0.5b", 7, "7 ranks cannot hold equally many copies of 2 heads"),
        ("falcon-7b", 2, "2 ranks cannot share 71 query heads"),
        ("llama-3-8b", 0, "0 is no whole number from 1"),
    ],
)
def test_what_does_not_divide(name: str, tp: int, what: str) -> None:
    with pytest.raises(ConfigError, match=f"^tp: {what}"):
        Deployment(model(name), A100, tp=tp)


# --- from 12 to 226 milliseconds ---------------------------------------------------------------

PROMPT = Chunk(0, 4096)


@pytest.mark.parametrize(
    ("context", "decode", "mixed", "printed", "ratio"),
    [
        (1_024, "9.98", "226.65", "226.64", "22.7"),
        (2_000, "11.99", "226.70", "226.69", "18.9"),
        (2_048, "12.09", "226.70", "226.69", "18.75"),
        (4_096, "16.30", "226.81", "226.80", "13.9"),
    ],
)
def test_a_prompt_among_32_users(
    context: int, decode: str, mixed: str, printed: str, ratio: str
) -> None:
    """Llama-3-8B, A100 80GB SXM. The printed table has 8.03e9 parameters and half the square of the
    prompt; the difference is 10 µs."""
    users = decodes(32, context)
    alone, both = step_time(LLAMA, users), step_time(LLAMA, (*users, PROMPT))
    assert f"{milliseconds(alone):.2f}" == decode
    assert f"{milliseconds(both):.2f}" == mixed
    digits = len(ratio.partition(".")[2])
    assert f"{float(both / alone):.{digits}f}" == ratio
    rounded_away = 2 * (8_030_261_248 - 8_030_000_000) * (32 + 4096)
    half = 4 * 32 * 4096 * Fraction(4096, 2)
    assert f"{milliseconds(both - (rounded_away + half) / A100.flops):.2f}" == printed


def test_from_12_to_226_milliseconds_and_18_times_are_truncations() -> None:
    users = decodes(32, 2_000)
    alone, both = step_time(LLAMA, users), step_time(LLAMA, (*users, PROMPT))
    assert round(milliseconds(alone)) == 12
    assert truncated(both, MS) == 226
    assert round(milliseconds(both)) == 227
    assert truncated(both, alone) == 18
    with_eight = both - Fraction(2 * (8_030_261_248 - 8 * 10**9) * 4_128, A100.flops)
    assert f"{milliseconds(with_eight):.2f}" == "225.90"


def test_where_the_226_milliseconds_go() -> None:
    users = decodes(32, 2_000)
    whole, prompt = work(LLAMA, (*users, PROMPT)), work(LLAMA, (PROMPT,))
    decode = work(LLAMA, users)
    rate = A100.flops / 1000
    assert f"{whole.linear / rate:.2f}" == "212.49"
    assert f"{prompt.attention / rate:.2f}" == "14.10"
    assert f"{decode.attention / rate:.2f}" == "0.11"
    square = 4 * 32 * 4096 * 4096**2
    assert f"{(whole.flops - prompt.attention + square) / rate:.1f}" == "240.8"
    written = work(LLAMA, (PROMPT,), kv_writes=True).kv_written
    assert f"{float(written) / A100.bandwidth * 1000:.2f}" == "0.26"
    assert whole.kv_written == 0
    both = work(LLAMA, (*users, PROMPT), kv_writes=True)
    assert both.bytes == whole.bytes + (32 + 4096) * 131_072


@pytest.mark.parametrize(
    ("name", "on", "tp", "least", "most"),
    [
        ("llama-3-8b", "a100-80gb-sxm", 1, 1_776, 2_240),
        ("llama-3-8b", "a100-40gb-sxm", 1, 448, 800),
        ("qwen2.5-32b", "a100-80gb-sxm", 4, 3_376, 4_336),
    ],
)
def test_the_pair_needs_its_context(name: str, on: str, tp: int, least: int, most: int) -> None:
    """12 ms to the nearest, at contexts in steps of 16, and 226 to the nearest or truncated."""
    d = Deployment(model(name), device(on), tp=tp)
    twelve = [
        c for c in range(16, 8_192, 16) if round(milliseconds(step_time(d, decodes(32, c)))) == 12
    ]
    both = [step_time(d, (*decodes(32, c), PROMPT)) for c in twelve]
    found = [
        c
        for c, t in zip(twelve, both, strict=True)
        if 226 in (round(milliseconds(t)), truncated(t, MS))
    ]
    assert (found[0], found[-1]) == (least, most)
    assert found == list(range(least, most + 1, 16))


def test_no_other_model_or_arithmetic_rate_gives_the_pair() -> None:
    """All models and devices on one rank: the pair pins the model and the rate, not the
    bandwidth."""
    found = set()
    for shape, chip in product(MODELS.values(), DEVICES.values()):
        d = Deployment(shape, chip)
        contexts = range(16, min(shape.context - 1, 8_192), 64)
        shortest, longest = (step_time(d, decodes(32, c)) for c in (contexts[0], contexts[-1]))
        if shape.context < 4_096 or shortest > Fraction(25, 2) * MS or longest < 11 * MS:
            continue
        for users in (decodes(32, context) for context in contexts):
            alone, both = step_time(d, users), step_time(d, (*users, PROMPT))
            if (round(milliseconds(alone)), truncated(both, MS)) == (12, 226):
                found.add((shape.name, chip.flops))
    assert found == {("llama-3-8b", A100.flops), ("llama-3.1-8b", A100.flops)}


def test_what_follows_from_it() -> None:
    free = ridge_tokens(LLAMA, 32, 2_000)
    assert round(free) == 233
    assert free // 32 - 1 == 6  # drafts a sequence, linear layers alone
    users = decodes(32, 2_000)
    for bound, chunk in ((25, 448), (50, 923), (100, 1_852)):
        assert largest_chunk(LLAMA, users, bound * MS) == chunk
        assert ms(LLAMA, *users, Chunk(0, chunk)) <= bound < ms(LLAMA, *users, Chunk(0, chunk + 1))


@pytest.mark.parametrize("tokens", [400, 448, 1_000])
def test_a_chunk_that_takes_just_the_bound_fits(tokens: int) -> None:
    users = decodes(32, 2_000)
    assert largest_chunk(LLAMA, users, step_time(LLAMA, (*users, Chunk(0, tokens)))) == tokens


def test_a_bound_that_is_too_tight_or_wide() -> None:
    users = decodes(32, 2_000)
    alone = step_time(LLAMA, users)
    assert largest_chunk(LLAMA, users, alone - Fraction(1, 10**9)) is None
    assert largest_chunk(LLAMA, users, Fraction(10)) == 8_192
    assert largest_chunk(LLAMA, users, Fraction(10), start=8_000) == 192
    busy = decodes(400, 16)
    assert largest_chunk(LLAMA, busy, step_time(LLAMA, busy)) == 0


# --- counting pairs ----------------------------------------------------------------------------


@pytest.mark.parametrize("windowed", [0, 1, 3])
def test_pairs_and_positions_one_by_one(windowed: int) -> None:
    """Three layers, some with a window of 4."""
    m = evolve(LLAMA.model, layers=3, window=4, windowed_layers=windowed)
    for start, tokens in product(range(9), range(1, 9)):
        full = [set(range(p + 1)) for p in range(start, start + tokens)]
        near = [set(range(max(p - 3, 0), p + 1)) for p in range(start, start + tokens)]
        layers = [full] * (3 - windowed) + [near] * windowed
        assert m.pairs(start, tokens) == sum(len(seen) for layer in layers for seen in layer)
        assert m.positions(start, tokens) == sum(len(set().union(*layer)) for layer in layers)


def test_pairs_are_counted_exactly_however_long_the_text() -> None:
    """n = 10⁹ + 1 tokens in a window that holds them: n(n + 1)/2 = 500,000,001,500,000,001 pairs a
    layer, which no float is."""
    n = 10**9 + 1
    pairs = 500_000_001_500_000_001
    assert int(float(pairs)) != pairs
    for layers in (0, 1, 3):
        m = evolve(LLAMA.model, layers=3, window=n, windowed_layers=layers)
        assert m.pairs(0, n) == 3 * pairs


def test_a_prompt_costs_the_same_arithmetic_however_it_is_cut() -> None:
    whole = work(LLAMA, (Chunk(0, 100),))
    for cut in range(1, 100):
        parts = [work(LLAMA, (chunk,)) for chunk in (Chunk(0, cut), Chunk(cut, 100 - cut))]
        assert sum(p.flops for p in parts) == whole.flops
        assert sum(p.bytes for p in parts) == whole.bytes + whole.weights + cut * 131_072


def test_alike_sequences_are_counted_at_once() -> None:
    assert work(LLAMA, (Chunk(7, 2),) * 5) == work(LLAMA, (Chunk(7, 2, 5),))


# --- does decode cross the ridge? --------------------------------------------------------------

TOY = Model("toy", 2, 8, Grouped(2, 1, 4), 16, 10, 10_000, "made up for these tests")
CHIPS = [Device("chip", flops, 7, 10**6, "made up for these tests") for flops in (7, 21, 60, 700)]
WINDOWS = [(None, 0), (5, 1), (5, 2), (40, 1), (40, 2)]
TOYS = [
    Deployment(evolve(TOY, window=window, windowed_layers=layers), chip)
    for (window, layers), chip in product(WINDOWS, CHIPS)
]


@pytest.mark.parametrize("d", TOYS)
def test_the_batch_that_crosses_the_ridge_one_by_one(d: Deployment) -> None:
    for context in (1, 4, 5, 6, 39, 40, 41, 100, 1_000):
        found = crossing(d, context)
        intensities = [work(d, decodes(b, context)).intensity for b in range(1, 400)]
        assert intensities == sorted(intensities)
        assert intensities[-1] < found.limit
        crossed = [b for b, i in enumerate(intensities, 1) if i >= d.device.ridge]
        if crossed:
            assert found.batch == crossed[0]
        else:
            assert found.batch is None or found.batch >= 400
        if found.batch is None:
            assert work(d, decodes(10**12, context)).intensity < found.limit <= d.device.ridge
        else:
            assert work(d, decodes(found.batch, context)).intensity >= d.device.ridge


@pytest.mark.parametrize("d", TOYS)
def test_the_longest_context_that_crosses_one_by_one(d: Deployment) -> None:
    longest = longest_crossing(d)
    for context in (*range(1, 200), 500, 1_000, 9_999):
        crosses = crossing(d, context).batch is not None
        assert crosses is (longest is None or context <= longest)


def on_a_chip(shape: Model, ridge: Fraction) -> Deployment:
    chip = Device("chip", ridge.numerator, ridge.denominator, 10**6, "made up for these tests")
    return Deployment(shape, chip)


def test_where_a_position_brings_as_much_as_it_takes_any_context_crosses() -> None:
    """A position is 32 FLOPs and 16 bytes a layer: at a ridge of 2 it pays for itself, and at one
    of 2 + 1/16 it lacks one FLOP a layer."""
    assert (TOY.attention.pair_flops(1), sum(TOY.attention.cached(1)) * 2) == (32, 16)
    assert longest_crossing(on_a_chip(TOY, Fraction(2))) is None
    assert crossing(on_a_chip(TOY, Fraction(2)), 9_999).batch is not None
    lacks_one = on_a_chip(evolve(TOY, vocabulary=1), Fraction(33, 16))
    longest = (2 * lacks_one.model.active() - 1) // 2  # c · 1 · 2 layers < 2N
    assert longest_crossing(lacks_one) == longest < 10_000
    assert crossing(lacks_one, longest).batch is not None
    assert crossing(lacks_one, longest + 1).batch is None


def test_half_a_flop_more_than_the_ridge_takes_crosses() -> None:
    """However narrowly: f(c) is above r·m(c) by 1/2."""
    one = work(on_a_chip(TOY, Fraction(2)), decodes(1, 20))
    d = on_a_chip(TOY, (one.flops - Fraction(1, 2)) / one.kv_read)
    batch = crossing(d, 20).batch
    assert batch is not None
    assert work(d, decodes(batch, 20)).intensity >= d.device.ridge
    assert work(d, decodes(batch - 1, 20)).intensity < d.device.ridge


@pytest.mark.parametrize("layers", [1, 2])
def test_the_longest_context_under_a_window(layers: int) -> None:
    """Three layers, of which some have a window of five: one that crosses far beyond it, and one in
    which a decode reaches the ridge just where the window is full, so the longest is four."""
    shape = evolve(TOY, layers=3, window=5, windowed_layers=layers)
    for spare in (Fraction(3 * 5), Fraction(3 * 5 * 7)):
        lacks = 2 * shape.active() / spare  # c · lacks · 3 layers < 2N up to c = spare / 3
        d = on_a_chip(shape, (32 + lacks) / 16)
        longest = longest_crossing(d)
        assert longest is not None
        assert longest == 4 if spare == 15 else longest > 5
        assert crossing(d, longest).batch is not None
        assert crossing(d, longest + 1).batch is None


def test_a_window_in_every_layer_is_full_or_nothing_crosses() -> None:
    """Where a decode reaches the ridge just when its windows are full, the longest context is one
    position less; where it does so with a full window to spare, there is no longest."""
    shape = evolve(TOY, window=5, windowed_layers=2)
    full = on_a_chip(shape, (32 + Fraction(2 * shape.active(), 2 * 5)) / 16)
    assert longest_crossing(full) == 4
    assert crossing(full, 4).batch is not None
    assert crossing(full, 5).batch is None
    spare = on_a_chip(shape, (32 + Fraction(2 * shape.active(), 2 * 6)) / 16)
    assert longest_crossing(spare) is None
    assert crossing(spare, 9_999).batch is not None


def test_long_contexts_level_off_below_the_ridge() -> None:
    """On an A100, Llama-3-8B crosses it up to 822 tokens; at 2,000 no batch is large enough."""
    assert longest_crossing(LLAMA) == 822
    assert crossing(LLAMA, 822).batch is not None
    never = crossing(LLAMA, 2_000)
    assert never.batch is None
    assert f"{float(never.limit):.1f}" == "65.3"
    short = crossing(LLAMA, 512)
    assert short.batch == 406
    intensities = [work(LLAMA, decodes(b, 512)).intensity for b in (405, 406)]
    assert intensities[0] < A100.ridge <= intensities[1]
