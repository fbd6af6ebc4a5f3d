"""Models: a catalogue of shapes, each with its source. Their parameters are counted, not quoted.

Shapes are those of the `config.json` that each model is published with on Hugging Face; the
longest text is its `max_position_embeddings`, or what its card says where that is another number.
"""

from __future__ import annotations

from servespec.theory.catalogue import found
from servespec.theory.shapes import Experts, Grouped, Latent, Model

_HF = "https://huggingface.co/"


def _llama(
    name: str,
    repository: str,
    layers: int,
    width: int,
    kv_heads: int,
    feed_forward: int,
    vocabulary: int,
    context: int,
) -> Model:
    """Heads of 128, no biases, nothing tied."""
    attention = Grouped(width // 128, kv_heads, 128)
    source = f"{_HF}{repository} config.json"
    return Model(name, layers, width, attention, feed_forward, vocabulary, context, source)


def _qwen25(
    size: str,
    layers: int,
    width: int,
    heads: int,
    kv_heads: int,
    feed_forward: int,
    vocabulary: int,
    context: int,
    tied: bool,
) -> Model:
    """Biases on queries, keys and values (arXiv 2412.15115)."""
    attention = Grouped(heads, kv_heads, width // heads, qkv_bias=True)
    source = f"{_HF}Qwen/Qwen2.5-{size} config.json; context: its card; arXiv 2412.15115"
    name = f"qwen2.5-{size.lower()}"
    return Model(
        name, layers, width, attention, feed_forward, vocabulary, context, source, tied=tied
    )


def _qwen3(size: str, layers: int, width: int, heads: int, feed_forward: int, tied: bool) -> Model:
    """Heads of 128, whatever the width; norms on queries and keys (arXiv 2505.09388)."""
    attention = Grouped(heads, 8, 128, qk_norm=True)
    source = f"{_HF}Qwen/Qwen3-{size} config.json; arXiv 2505.09388"
    name = f"qwen3-{size.lower()}"
    return Model(name, layers, width, attention, feed_forward, 151_936, 40_960, source, tied=tied)


_MISTRAL_V01 = "mistralai/Mistral-7B-v0.1"

MODELS = {
    m.name: m
    for m in (
        _llama("llama-3-8b", "meta-llama/Meta-Llama-3-8B", 32, 4096, 8, 14336, 128_256, 8_192),
        _llama("llama-3-70b", "meta-llama/Meta-Llama-3-70B", 80, 8192, 8, 28672, 128_256, 8_192),
        _llama("llama-3.1-8b", "meta-llama/Llama-3.1-8B", 32, 4096, 8, 14336, 128_256, 131_072),
        _llama("llama-3.1-70b", "meta-llama/Llama-3.1-70B", 80, 8192, 8, 28672, 128_256, 131_072),
        _llama("llama-2-7b", "meta-llama/Llama-2-7b-hf", 32, 4096, 32, 11008, 32_000, 4_096),
        _llama("llama-2-13b", "meta-llama/Llama-2-13b-hf", 40, 5120, 40, 13824, 32_000, 4_096),
        _llama("llama-2-70b", "meta-llama/Llama-2-70b-hf", 80, 8192, 8, 28672, 32_000, 4_096),
        Model(
            "mistral-7b-v0.1",
            32,
            4096,
            Grouped(32, 8, 128),
            14336,
            32_000,
            32_768,
            f"{_HF}{_MISTRAL_V01} config.json; sliding window: arXiv 2310.06825",
            window=4_096,
            windowed_layers=32,
        ),
        _llama("mistral-7b-v0.3", "mistralai/Mistral-7B-v0.3", 32, 4096, 8, 14336, 32_768, 32_768),
        Model(
            "gpt-j-6b",
            28,
            4096,
            Grouped(16, 16, 256),
            16384,
            50_400,
            2_048,
            f"{_HF}EleutherAI/gpt-j-6b config.json; one norm a layer, biases in the feed-forward "
            "network and on the head: transformers, modeling_gptj.py",
            gated=False,
            feed_forward_bias=True,
            head_bias=True,
            last_norm_vectors=2,
        ),
        Model(
            "falcon-7b",
            32,
            4544,
            Grouped(71, 1, 64),
            18176,
            65_024,
            2_048,
            f"{_HF}tiiuae/falcon-7b config.json and card; multi-query attention; one norm a layer, "
            "no biases, tied embeddings: transformers, modeling_falcon.py",
            tied=True,
            gated=False,
            last_norm_vectors=2,
        ),
        _qwen25("0.5B", 24, 896, 14, 2, 4864, 151_936, 32_768, tied=True),
        _qwen25("1.5B", 28, 1536, 12, 2, 8960, 151_936, 32_768, tied=True),
        _qwen25("3B", 36, 2048, 16, 2, 11008, 151_936, 32_768, tied=True),
        _qwen25("7B", 28, 3584, 28, 4, 18944, 152_064, 131_072, tied=False),
        _qwen25("14B", 48, 5120, 40, 8, 13824, 152_064, 131_072, tied=False),
        _qwen25("32B", 64, 5120, 40, 8, 27648, 152_064, 131_072, tied=False),
        _qwen25("72B", 80, 8192, 64, 8, 29568, 152_064, 131_072, tied=False),
        _qwen3("0.6B", 28, 1024, 16, 3072, tied=True),
        _qwen3("1.7B", 28, 2048, 16, 6144, tied=True),
        _qwen3("4B", 36, 2560, 32, 9728, tied=True),
        _qwen3("8B", 36, 4096, 32, 12288, tied=False),
        _qwen3("14B", 40, 5120, 40, 17408, tied=False),
        _qwen3("32B", 64, 5120, 64, 25600, tied=False),
        Model(
            "deepseek-v3",
            61,
            7168,
            Latent(128, query_rank=1536, latent=512, rotary=64, head_dim=128, value_dim=128),
            18432,
            129_280,
            163_840,
            f"{_HF}deepseek-ai/DeepSeek-V3 config.json; arXiv 2412.19437; without the module that "
            "predicts a second token",
            experts=Experts(count=256, chosen=8, shared=1, width=2048, dense_layers=3),
        ),
    )
}
"""By name."""


def model(name: str) -> Model:
    """The model of this name.

    Raises:
        ConfigError: there is none; the nearest names are offered.
    """
    return found("model", name, MODELS)
