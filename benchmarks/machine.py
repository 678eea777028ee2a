"""Description of the machine and the software versions of a measurement; number of threads."""

from __future__ import annotations

import datetime
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

PACKAGES = (
    "tensorflow-cpu",
    "tensorflow",
    "keras",
    "numpy",
    "scipy",
    "torch",
    "fbgemm_gpu-cpu",
    "datasketches",
)


ROOT = Path(__file__).resolve().parents[1]


def command_line(module: str) -> str:
    """The command of this process, as documents state it.

    Absolute paths would name folders of one machine: those in the checkout are relative to it, and
    of others only the name of the file or folder is left.

    Args:
        module: name of the module that `python -m` runs.

    Returns:
        The command with its arguments.
    """
    arguments = [re.sub(r"(?<![^=:])/\S+", _portable, each) for each in sys.argv[1:]]
    return " ".join([f"python -m {module}", *arguments])


def _portable(match: re.Match[str]) -> str:
    path = Path(match.group())
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def describe(command: str, packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """Describes the machine, the versions, the date and the current load.

    Args:
        command: the command that makes the measurement.
        packages: packages to list with their versions, if they are installed.
    """
    return {
        "cpu": _first(Path("/proc/cpuinfo"), "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "arithmetic": round(arithmetic_speedup(len(os.sched_getaffinity(0))), 1),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "last_level_cache": _cache(),
        "simd": _simd(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: v for name in packages if (v := _version(name))},
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "load_before": round(os.getloadavg()[0], 2),
        "command": command,
    }


def arithmetic_speedup(threads: int, repeats: int = 5) -> float:
    """Speed of `threads` threads together, relative to one thread.

    The result is about `threads` if each thread has a core, and about 1 if all are hyperthreads of
    one core. The threads compute square roots in the first-level cache, so memory is no limit.
    """
    numbers = [np.full(4096, 2.0) for _ in range(threads)]

    def work(x: np.ndarray) -> None:
        for _ in range(2000):
            np.sqrt(x, out=x)

    def seconds(count: int) -> float:
        start = time.perf_counter()
        list(pool.map(work, numbers[:count]))
        return time.perf_counter() - start

    with ThreadPoolExecutor(threads) as pool:
        return threads * statistics.median(seconds(1) / seconds(threads) for _ in range(repeats))


def limit_threads(threads: int) -> None:
    """Limits the threads of every library; call it before any of them is imported."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    except RuntimeError:  # TensorFlow is initialized; accept it if it has the same setting
        if tf.config.threading.get_intra_op_parallelism_threads() not in (0, threads):
            raise


def create_logical_cpus(parts: int) -> None:
    """Divides the CPU into logical devices for replicas; call it before TensorFlow runs ops."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    if len(tf.config.get_logical_device_configuration(cpu) or []) < parts:
        logical = [tf.config.LogicalDeviceConfiguration() for _ in range(parts)]
        tf.config.set_logical_device_configuration(cpu, logical)


def _first(path: Path, key: str) -> str:
    lines = path.read_text().splitlines() if path.exists() else []
    found = (line.split(":", 1)[1].strip() for line in lines if line.startswith(key))
    return next(found, platform.processor())


def _simd() -> str:
    flags = _first(Path("/proc/cpuinfo"), "flags").split()
    return next((name for name in ("avx512f", "avx2", "avx") if name in flags), "baseline")


def _cache() -> str:
    sizes = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    return sizes[-1].read_text().strip() if sizes else "unknown"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
