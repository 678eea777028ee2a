"""Published figures of the chips that `tpu-check` and `gpu-check` compile for."""

from __future__ import annotations

from typing import NamedTuple


class GpuTarget(NamedTuple):
    """The properties of a GPU that determine XLA's code.

    Attributes:
        description: The name that the driver reports.
        capability: The compute capability, such as (9, 0).
        cores: Number of multiprocessors.
        threads: Threads of a multiprocessor.
        fpus: float32 units of a multiprocessor.
        shared_memory: Shared memory of a multiprocessor, in bytes.
        l2: Size of the L2 cache, in bytes.
        clock: Clock rate in GHz.
    """

    description: str
    capability: tuple[int, int]
    cores: int
    threads: int
    fpus: int
    shared_memory: int
    l2: int
    clock: float


class Chip(NamedTuple):
    """One generation of TPU or GPU, per device as a program sees it.

    The two cores of a v4 or v5p chip are one device ("megacore"). The figures of TPUs are from
    https://cloud.google.com/tpu/docs/system-architecture-tpu-vm and the pages of each generation,
    the figures of GPUs from NVIDIA's data sheets, without sparsity.

    Attributes:
        name: The name in Google Cloud, such as "v5e", or that of the GPU, such as "H100".
        topology: The smallest slice that is a whole host, in chips, such as "2x2"; one GPU.
        flops: Peak floating-point operations per second with bfloat16 inputs.
        hbm: Size of the memory, in bytes.
        bandwidth: Memory bandwidth, in bytes per second.
        source: Where the figures are from, as reports show it.
        gpu: What XLA has to know about a GPU that is not there; None for a TPU.
    """

    name: str
    topology: str
    flops: float
    hbm: int
    bandwidth: float
    source: str = "Google's public figures, cloud.google.com/tpu/docs"
    gpu: GpuTarget | None = None


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

_NVIDIA = "NVIDIA's data sheets"
GPUS = {
    chip.name: chip
    for chip in (
        Chip(
            *("A100", "1x1x1", 312e12, 40 * _GIB, 1555e9, _NVIDIA),
            GpuTarget("NVIDIA A100-SXM4-40GB", (8, 0), 108, 2048, 64, 164 << 10, 40 << 20, 1.41),
        ),
        Chip(
            *("H100", "1x1x1", 989e12, 80 * _GIB, 3350e9, _NVIDIA),
            GpuTarget("NVIDIA H100 80GB HBM3", (9, 0), 132, 2048, 128, 228 << 10, 50 << 20, 1.98),
        ),
        Chip(
            *("L4", "1x1x1", 121e12, 24 * _GIB, 300e9, _NVIDIA),
            GpuTarget("NVIDIA L4", (8, 9), 58, 1536, 128, 100 << 10, 48 << 20, 2.04),
        ),
    )
}
"""The GPUs that XLA can compile for, by name."""


def get_chip(name: str) -> Chip:
    """Returns a chip.

    Args:
        name: A key of `CHIPS` or of `GPUS`.

    Returns:
        Its figures.

    Raises:
        ValueError: There is no chip of that name.
    """
    known = {**CHIPS, **GPUS}
    if name not in known:
        raise ValueError(f"unknown chip {name!r}: expected one of {', '.join(known)}")
    return known[name]


def gpu_target_config(chip: Chip) -> str:
    """Describes a GPU to XLA, as a text of its `GpuTargetConfigProto`.

    Args:
        chip: A chip of `GPUS`.

    Returns:
        The text.
    """
    gpu = chip.gpu
    assert gpu is not None
    major, minor = gpu.capability
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {gpu.shared_memory}
  shared_memory_per_block_optin: {gpu.shared_memory - 1024}
  threads_per_core_limit: {gpu.threads}
  core_count: {gpu.cores}
  fpus_per_core: {gpu.fpus}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {chip.bandwidth:.0f}
  l2_cache_size: {gpu.l2}
  clock_rate_ghz: {gpu.clock}
  device_memory_size: {chip.hbm}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 3 }}
runtime_version {{ major: 12 minor: 8 }}
device_description_str: "{gpu.description}"
"""
