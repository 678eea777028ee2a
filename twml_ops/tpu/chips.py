"""Published figures of the TPU chips that `tpu-check` compiles for."""

from __future__ import annotations

from typing import NamedTuple


class Chip(NamedTuple):
    """One generation of TPU, per device as a program sees it.

    The two cores of a v4 or v5p chip are one device ("megacore"). The figures are from
    https://cloud.google.com/tpu/docs/system-architecture-tpu-vm and the pages of each generation.

    Attributes:
        name: The name in Google Cloud, such as "v5e".
        topology: The smallest slice that is a whole host, in chips, such as "2x2".
        flops: Peak floating-point operations per second with bfloat16 inputs.
        hbm: Size of the memory, in bytes.
        bandwidth: Memory bandwidth, in bytes per second.
    """

    name: str
    topology: str
    flops: float
    hbm: int
    bandwidth: float


_GIB = 1 << 30
CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", "2x2x1", 275e12, 32 * _GIB, 1228e9),
        Chip("v5e", "2x2", 197e12, 16 * _GIB, 819e9),
        Chip("v5p", "2x2x1", 459e12, 95 * _GIB, 2765e9),
        Chip("v6e", "2x2", 918e12, 32 * _GIB, 1640e9),
    )
}
"""The chips that the TPU compiler can compile for, by name."""

SOURCE = "Google's public figures, cloud.google.com/tpu/docs"
"""Where the figures are from, as reports show it."""


def get_chip(name: str) -> Chip:
    """Returns a chip.

    Args:
        name: A key of `CHIPS`.

    Returns:
        Its figures.

    Raises:
        ValueError: There is no chip of that name.
    """
    if name not in CHIPS:
        raise ValueError(f"unknown chip {name!r}: expected one of {', '.join(CHIPS)}")
    return CHIPS[name]
