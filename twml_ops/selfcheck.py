"""`python -m twml_ops.selfcheck`: checks the installation.

Prints the versions, the op library, its SIMD level, and whether one op and one gradient agree with
NumPy. Exits with 1 if a check fails, and with --require-library also if stock TensorFlow ops
replace the op library.
"""

from __future__ import annotations

import argparse
import platform
import sys
import warnings
from collections.abc import Callable

import numpy as np

import twml_ops
from twml_ops import _startup_log

Report = Callable[[str, object], None]


def main(arguments: list[str] | None = None) -> int:
    """Runs the checks.

    Args:
        arguments: Command line arguments; None: the arguments of the process.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(prog="python -m twml_ops.selfcheck", description=__doc__)
    parser.add_argument(
        "--require-library", action="store_true", help="fail without the op library"
    )
    options = parser.parse_args(arguments)

    def report(name: str, value: object) -> None:
        print(f"{name:18} {value}")

    report("twml_ops", twml_ops.__version__)
    report("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    report("NumPy", np.__version__)
    problems = _check_core(report) + _check_tensorflow(report, options.require_library)
    for problem in problems:
        report("PROBLEM", problem)
    report("result", "failed" if problems else "all is well")
    return 1 if problems else 0


def _check_core(report: Report) -> list[str]:
    try:
        from twml_ops import core
    except ImportError as e:
        return [f"twml_ops._core does not load: {e}"]
    report("SIMD level", core.simd_level())
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    got = core.sparse_linear([0, 2], [1.0, 2.0], [0, 2], table)
    return _compare(report, "NumPy op", got, table[[0]] + 2 * table[[2]])


def _check_tensorflow(report: Report, require_library: bool) -> list[str]:
    _startup_log.quiet()
    try:
        import tensorflow as tf
    except ImportError as e:
        report("TensorFlow", f"not installed ({e}): only twml_ops.core can be used")
        return ["the op library needs TensorFlow"] if require_library else []
    report("TensorFlow", tf.__version__)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from twml_ops import ops
        from twml_ops._keras import VERSION
        from twml_ops.ops import _library
    report("Keras", VERSION)
    native = _library.is_native()
    problems = []
    if native:
        report("op library", _library.path_of(tf.__version__))
    else:
        report("op library", "none: stock TensorFlow ops, slower")
        for warning in caught:
            if issubclass(warning.category, _library.FallbackWarning):
                report("why", warning.message)
        if require_library:
            problems.append("the op library is not loaded")
    return problems + _check_gradient(report, tf, ops)


def _check_gradient(report: Report, tf: object, ops: object) -> list[str]:
    start = np.arange(6, dtype=np.float32).reshape(3, 2)
    table = tf.Variable(start)  # type: ignore[attr-defined]
    with tf.GradientTape() as tape:  # type: ignore[attr-defined]
        y = ops.sparse_linear([2, 0, 2], [1.0, 2.0, 3.0], [0, 1, 3], table)  # type: ignore[attr-defined]
    gradient = tape.gradient(y, table)
    want = np.stack([start[2], 2 * start[0] + 3 * start[2]])
    return [
        *_compare(report, "op", y.numpy(), want),
        *_compare(report, "gradient's ids", gradient.indices.numpy(), np.array([0, 2])),
        *_compare(report, "gradient", gradient.values.numpy(), np.array([[2.0, 2], [4, 4]])),
    ]


def _compare(report: Report, name: str, got: np.ndarray, want: np.ndarray) -> list[str]:
    right = got.shape == want.shape and np.allclose(got, want)
    report(name, "right" if right else "WRONG")
    return [] if right else [f"{name}: expected {want.tolist()}, got {got.tolist()}"]


if __name__ == "__main__":
    sys.exit(main())
