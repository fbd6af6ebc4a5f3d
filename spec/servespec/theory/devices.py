"""Devices: arithmetic, bandwidth and memory of accelerators, each number with its source.

Rates are peaks for *dense* bf16 with accumulation in f32. Vendors like to print the rate with
sparsity, which is twice that; pages that call 1,979 (H100) or 2,615 (MI300X) TFLOP/s dense are
wrong. The *ridge* is the arithmetic intensity at which arithmetic and memory take equally long.
"""

from __future__ import annotations

from fractions import Fraction

from attrs import field, fields, frozen

from servespec.errors import ConfigError
from servespec.theory.catalogue import found

GIB = 1 << 30
TERA, GIGA = 10**12, 10**9


@frozen
class Device:
    """One accelerator.

    Raises:
        ConfigError: a rate, a bandwidth or a memory that is no positive whole number.
    """

    name: str
    flops: int = field()
    """FLOP/s, dense bf16."""
    bandwidth: int = field()
    """Bytes a second between memory and chip."""
    memory: int = field()
    """Bytes."""
    source: str

    def __attrs_post_init__(self) -> None:
        for name in (f.name for f in fields(Device) if f.name not in ("name", "source")):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
                problem = f"{value!r} of {self.name!r} is no whole number above 0"
                raise ConfigError(name, problem, f"set another {name}")

    @property
    def ridge(self) -> Fraction:
        """P/W, FLOP a byte."""
        return Fraction(self.flops, self.bandwidth)


_AIC = "NVIDIA aiconfigurator, systems/"
_SHEETS = "NVIDIA's datasheet, by way of glennklockwood.com"
_NOMINAL = "memory: as sold, in GiB"

DEVICES = {
    d.name: d
    for d in (
        Device(
            "a100-80gb-sxm", 312 * TERA, 2_039 * GIGA, 80 * GIB, f"{_AIC}a100_sxm.yaml; {_SHEETS}"
        ),
        Device("a100-80gb-pcie", 312 * TERA, 1_935 * GIGA, 80 * GIB, f"{_SHEETS}; {_NOMINAL}"),
        Device("a100-40gb-sxm", 312 * TERA, 1_555 * GIGA, 40 * GIB, f"{_SHEETS}; {_NOMINAL}"),
        Device(
            "h100-sxm",
            989_400 * GIGA,
            3_350 * GIGA,
            80 * GIB,
            f"{_AIC}h100_sxm.yaml (989); NVIDIA's H100 table: 989.4 dense, 1,978.9 sparse",
        ),
        Device(
            "h100-pcie",
            756 * TERA,
            2_000 * GIGA,
            80 * GIB,
            f"{_AIC}h100_pcie.yaml; {_NOMINAL}",
        ),
        Device("h200-sxm", 989_400 * GIGA, 4_800 * GIGA, 141 * GIB, f"{_AIC}h200_sxm.yaml (989)"),
        Device(
            "b200",
            2_250 * TERA,
            8_000 * GIGA,
            180 * GIB,
            f"HGX at 1,000 W: NVIDIA's Blackwell table; memory: {_AIC}b200_sxm.yaml, whose newer "
            "versions say 7,700 GB/s",
        ),
        Device(
            "gb200",
            2_500 * TERA,
            8_000 * GIGA,
            180 * GIB,
            f"the same chip at 1,200 W: NVIDIA's Blackwell table; memory: {_AIC}b200_sxm.yaml",
        ),
        Device(
            "l4",
            121 * TERA,
            300 * GIGA,
            24 * GIB,
            f"{_AIC}l4.yaml (121 dense, 242 with sparsity); {_NOMINAL}",
        ),
        Device(
            "mi300x",
            1_307_400 * GIGA,
            5_300 * GIGA,
            192 * GIB,
            f"AMD, by way of alpharomercoma/MI300X-vs-H200; {_NOMINAL}",
        ),
        Device(
            "rtx-4090",
            165_200 * GIGA,
            1_008 * GIGA,
            25_250_627_584,
            "waredb.com, nvidia-geforce-rtx-4090 (bf16 165.15, with sparsity 330.30); memory: "
            "what a card reported in LLMServingSim's run of vLLM 0.19.0 (bench/examples)",
        ),
    )
}
"""By name."""


def device(name: str) -> Device:
    """The device of this name.

    Raises:
        ConfigError: there is none; the nearest names are offered.
    """
    return found("device", name, DEVICES)
