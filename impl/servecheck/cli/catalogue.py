"""The models, devices and formats that arithmetic knows, each with its source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servecheck.cli.figures import number
from servecheck.cli.terminal import Exit, say, say_json

if TYPE_CHECKING:
    from servespec.theory.shapes import Model


def listed(as_json: bool) -> int:
    from servespec.theory.devices import DEVICES
    from servespec.theory.dtypes import DTYPES
    from servespec.theory.models import MODELS

    if as_json:
        devices = {
            d.name: {
                "flops": d.flops,
                "bandwidth": d.bandwidth,
                "memory": d.memory,
                "ridge": float(d.ridge),
                "source": d.source,
            }
            for d in DEVICES.values()
        }
        models = {m.name: _model_told(m) for m in MODELS.values()}
        formats = {f.name: {"bytes": number(f.bytes), "source": f.source} for f in DTYPES.values()}
        say_json({"command": "arithmetic", "devices": devices, "models": models, "dtypes": formats})
        return Exit.HOLDS
    say("devices: dense bf16 TFLOP/s, GB/s, FLOP/B, memory; source")
    for d in DEVICES.values():
        rates = f"{d.flops / 1e12:>8,.1f}{d.bandwidth / 1e9:>7,.0f}{float(d.ridge):>7.1f}"
        say(f"  {d.name:<16}{rates}{d.memory / 1e9:>8.1f} GB  {d.source}")
    say("models: parameters, KV bytes a token in bf16, longest text; source")
    for m in MODELS.values():
        told = _model_told(m)
        counts = f"{told['parameters']:>16,}{told['kv_bytes_per_token']:>9,}{m.context:>9,}"
        say(f"  {m.name:<16}{counts}  {m.source}")
    say("formats: bytes a number; source")
    for f in DTYPES.values():
        say(f"  {f.name:<16}{float(f.bytes):>8.4g}  {f.source}")
    return Exit.HOLDS


def _model_told(m: Model) -> dict[str, object]:
    return {
        "parameters": m.parameters(),
        "active": m.active(),
        "kv_bytes_per_token": 2 * m.layers * sum(m.attention.cached(1)),
        "context": m.context,
        "source": m.source,
    }
