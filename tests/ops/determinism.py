"""Prints a digest of what each registered op returns and writes, for many entries.

`python -m tests.ops.determinism THREADS` calls the valid calls of `tests.fuzz.ops`, whose ids,
values, rows and gradients are replaced by many of them. The last line of the output is JSON:
op -> [whether it took so many, a digest of integers, a digest of all].
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.fuzz import ops
from tests.fuzz.ops import op_names
from twml_ops import core

EXAMPLES, ENTRIES = 6000, 40_000


def many() -> dict[str, np.ndarray]:
    """Name of the module `tests.fuzz.ops` -> its value in large calls."""
    rng = np.random.default_rng(0)
    splits = np.sort(rng.integers(0, ENTRIES + 1, EXAMPLES + 1))
    splits[[0, -1]] = 0, ENTRIES
    return {
        "IDS": rng.integers(0, 5, ENTRIES),
        "VALUES": rng.normal(size=ENTRIES).astype(np.float32),
        "SPLITS": splits,
        "ROWS": rng.normal(size=[ENTRIES, 2]).astype(np.float32),
        "GRAD": rng.normal(size=[EXAMPLES, 2]).astype(np.float32),
    }


def replaced(value: Any, by: dict[int, np.ndarray]) -> Any:
    """An argument in which the arrays with these identities are replaced."""
    if isinstance(value, list):
        return [replaced(v, by) for v in value]
    return by.get(id(value), value)


def digest(arrays: list[np.ndarray]) -> str:
    """A digest of bytes, types and shapes."""
    made = hashlib.sha256()
    for x in arrays:
        made.update(repr((x.dtype, x.shape)).encode() + np.ascontiguousarray(x).tobytes())
    return made.hexdigest()[:16]


def call(caller: ops.Caller, name: str, given: dict[str, Any]) -> tuple[str, str]:
    """Calls an op eagerly; digests of the integers and of all that it returns and writes."""
    outputs, kept = caller.call(name, given, random.Random(0))
    found = [
        np.asarray(x.numpy())
        for x in [*outputs, *kept]
        if hasattr(x, "numpy") and x.dtype not in (tf.variant, tf.resource)
    ]
    return digest([x for x in found if x.dtype.kind in "iub"]), digest(found)


def main() -> None:
    """Calls each op, small or large, whichever it takes."""
    threads = int(sys.argv[1])
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    large = many()
    by = {id(getattr(ops, name)): value for name, value in large.items()}
    small = {name: getattr(ops, name) for name in large}
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        caller = ops.Caller(Path(folder))
        for name in op_names():
            given = ops.SEEDS[name]
            try:
                vars(ops).update(large)
                found, is_large = call(caller, name, {k: replaced(v, by) for k, v in given.items()})
                result[name] = [True, found, is_large]
            except ops.ANSWERS:
                vars(ops).update(small)
                result[name] = [False, *call(caller, name, given)]
    print(json.dumps({"level": core.simd_level(), "ops": result}))


if __name__ == "__main__":
    main()
