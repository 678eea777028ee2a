"""What is known in public of the TPUs that `tpu-check` compiles for."""

from __future__ import annotations

from typing import NamedTuple


class Chip(NamedTuple):
    """One kind of TPU: what one device of it, as a program sees it, has.

    The figures are Google's, https://cloud.google.com/tpu/docs/system-architecture-tpu-vm and its
    pages of each version; two cores of a v4 or v5p chip are one device ("megacore").

    Attributes:
        name: as Google Cloud calls it.
        topology: the smallest slice of a whole host, by chips.
        flops: most products and sums a second, of bfloat16 factors.
        hbm: bytes of memory.
        bandwidth: bytes a second to and from it.
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
SOURCE = "Google's public figures, cloud.google.com/tpu/docs"


def get_chip(name: str) -> Chip:
    """The chip `name`.

    Raises:
        ValueError: it is not known.
    """
    if name not in CHIPS:
        raise ValueError(f"unknown chip {name!r}: expected one of {', '.join(CHIPS)}")
    return CHIPS[name]
