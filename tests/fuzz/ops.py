"""Calls every op of the library with arguments that are valid but for one or two changes.

`python -m tests.fuzz.ops --seconds 60` runs child processes. A signal, an exception that is no
error of an argument, an unanswered call and a result that differs from the stock op are findings;
each is printed with the command that repeats it.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import math
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from twml_ops.ops import stock
from twml_ops.ops._library import library

HUGE = 2**62
IDS, SPLITS = np.array([4, 1, 4, 0]), np.array([0, 1, 4])
VALUES = np.float32([0.5, -2, 1, 3])
TABLE = np.arange(10, dtype=np.float32).reshape(5, 2)
GRAD = np.float32([[1, 2], [3, 4]])
ROWS, CACHE = np.ones((4, 2), np.float32), np.zeros((16, 2), np.float32)
COUNTS = np.ones(5, np.int64)
BATCH = {"ids": IDS, "values": VALUES, "row_splits": SPLITS}
FORWARD = {"ids": IDS, "row_splits": SPLITS, "grad": GRAD}
# ValueError and TypeError are of shape functions and attributes; MemoryError is of TensorFlow, for
# an attribute that gives an op 2^31 outputs.
ANSWERS = (tf.errors.OpError, ValueError, TypeError, MemoryError)


class Var:
    """A resource variable with this value."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Made:
    """What another op makes: `groups` of IDS, `batch`, `message`, `file` (rows),
    `cache` (table)."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


def sketch_state() -> dict[str, Any]:
    """The state of a sketch with runs and buffered items."""
    from twml_ops import core

    made = core.QuantileSketch(0.1, 4)
    made.update(np.repeat(IDS, 50), np.arange(200, dtype=np.float32))
    made.update(IDS, VALUES)
    return dict(made.state())


STATE = sketch_state()
BUCKETS = {
    "feature_ids": np.array([0, 4]),
    "boundaries": np.float32([0, 1, 2]),
    "boundary_splits": np.array([0, 1, 3]),
    "side": "left",
    "missing": "bucket",
    "unknown": "pass",
}
FILE = {"num_rows": 20, "prefetch_rows": 4, "policy": "lru", "direct": False, "io_uring": True}
ADAM = {
    "slots": [Var(TABLE), Var(TABLE)],
    "hyper": [np.float32(x) for x in (0.1, 0.9, 0.99, 1e-7, 0)],
    "rule": "lazy_adam",
}
NORM = {"ids": IDS, "values": VALUES, "bias": [Var(VALUES[[0, 1, 2, 3, 0]])], "training": True,
        "groups": [], "epsilon": 0.1, "nonfinite": "zero", "decay": 1.0}  # fmt: skip
# Of each op: arguments that it accepts.
SEEDS: dict[str, dict[str, Any]] = {
    "apply_rows": {"var": Var(TABLE), **ADAM, "ids": IDS, "rows": ROWS, "seed": 1},
    "average_rows": {"var": Var(TABLE), "average": Var(TABLE), "steps": Var(COUNTS), "ids": IDS,
                     "step": 2, "log_momentum": np.float64(-0.1)},
    "group_ids": {"ids": IDS, "input_dim": 5},
    "group_batch": {**BATCH, "input_dim": 5, "groups": [Made("groups")]},
    "sparse_linear_backward_apply": {"var": Var(TABLE), **ADAM, "groups": Made("batch"),
                                     "grad": GRAD, "seed": 1},
    "sparse_linear": {**BATCH, "weights": TABLE},
    "resource_sparse_linear": {**BATCH, "weights": Var(TABLE)},
    "sparse_linear_values_grad": {**FORWARD, "weights": TABLE},
    "resource_sparse_linear_values_grad": {**FORWARD, "weights": Var(TABLE)},
    "sparse_linear_weights_grad": {**BATCH, "grad": GRAD, "input_dim": 5,
                                   "groups": [Made("batch")]},
    "grouped_sparse_linear": {**{k: [v, v] for k, v in BATCH.items()},
                              "weights": [Var(TABLE), Var(TABLE)], "binary": [False, False]},
    "sum_duplicates": {"ids": IDS, "rows": ROWS, "groups": [Made("groups")]},
    "row_splits_from_indices": {"row_indices": np.array([0, 1, 1, 3]), "num_rows": 4},
    "csr_from_indices": {"indices": np.array([[0, 5], [1, 2], [1, 3]]), "num_rows": 4},
    "hash_ids": {"ids": IDS, "bits": 8, "salt": 3},
    "dynamic_lookup": {"ids": IDS, "keys": Var(np.arange(5)), "last_used": Var(COUNTS),
                       "counts": Var(COUNTS), "index": Var(np.array([4, 3, 2, 1] * 4, np.int32)),
                       "sketch": Var(np.zeros((4, 8), np.uint8)),
                       "header": Var(np.array([1, 4, 0, 0])), "training": True, "pinned": 1,
                       "min_count": 2, "eviction": "lru", "max_age": 0, "seed": 0},
    "shared_dynamic_lookup": {
        "ids": IDS, "keys": Var(np.arange(5)), "last_used": Var(COUNTS), "counts": Var(COUNTS),
        "index": Var(np.array([4, 3, 2, 1] * 4, np.int32)),
        "sketch": Var(np.zeros((4, 8), np.uint8)), "header": Var(np.array([1, 4, 0, 0])),
        "new_rows": Var(np.array([[8, 7], [2, 8]])), "base": 7, "begun": 6, "pinned": 1,
        "min_count": 2, "eviction": "lru", "max_age": 0, "seed": 0},
    "field_rows": {"ids": np.array([[-1, 5], [7, 8]]), "num_rows": [2, 7]},
    "find_keys": {"known": np.arange(5), "keys": np.arange(-1, 6)},
    "gather_dot": {"table": TABLE, "positions": np.zeros((2, 3), np.int64), "vectors": TABLE[:1]},
    "tree_sums": {"x": GRAD, "ensembles": np.array([1, 0]), "features": np.int32([0, 1, 0]),
                  "thresholds": np.float32([1, 2, 0]), "missing_left": np.uint8([0, 1, 0]),
                  "children": np.int32([[1, 2], [1, 1], [2, 2]]), "values": np.float32([0, 1, 2]),
                  "roots": np.int32([[0], [1]]), "max_depth": 3},
    "max_norm": {**NORM, "max_abs": Var(np.ones(5, np.float32))},
    "online_standardize": {**NORM, "moments": Var(np.ones((5, 3))), "clip": 3.0},
    "percentile_discretize": {**BATCH, **BUCKETS, "pass_through_bits": 8},
    "hashing_discretize": {**BATCH, **BUCKETS, "output_bits": 8},
    "pack_entries": {**BATCH, "parts": 2, "input_dim": 5, "deduplicate": True},
    "unpack_entries": {"packed": Made("message"), "T": tf.int64},
    "group_packed_entries": {"packed": Made("message"), "input_dim": 5, "T": tf.int64},
    "join_batches": {"ids": [IDS, IDS], "values": [VALUES, VALUES],
                     "row_splits": [BATCH["row_splits"], BATCH["row_splits"]],
                     "gradients": [GRAD, GRAD]},
    "rows_to_int8": {"rows": TABLE, "seed": 3, "stream": 1, "at_random": True},
    "rows_from_int8": {"codes": TABLE.astype(np.int8), "scales": COUNTS.astype(np.float32)},
    "take_changed_rows": {"variables": [Var(TABLE), Var(TABLE)], "consumer": 7,
                          "dtypes": [tf.float32, tf.float32]},
    "keep_changed_rows": {"variable": Var(TABLE), "consumer": 7, "interval": 1},
    "mark_changed_rows": {"variable": Var(TABLE), "ids": IDS, "all": False},
    "release_changed_rows": {"variable": Var(TABLE), "consumer": 7},
    "open_tiered_rows": {"table": Var(CACHE), "initial": CACHE[0], "path": "new", **FILE},
    "open_server_rows": {"table": Var(CACHE), "initial": CACHE[0], "path": "new", **FILE},
    "close_server_rows": {"table": Made("cache")},
    "attach_slots": {"rows": Made("file"), "slots": [Var(CACHE)],
                     "initial_values": [np.float32(0.5)]},
    "prefetch_rows": {"rows": Made("file"), "ids": IDS},
    "read_tiered_rows": {"rows": Made("file"), "begin": 1, "count": 5, "part": 0,
                         "dtype": tf.float32},
    "write_tiered_rows": {"rows": Made("file"), "begin": 1, "values": TABLE, "part": 0},
    "tiered_statistics": {"rows": Made("file")},
    "tiered_sparse_linear": {**BATCH, "table": Made("cache"), "input_dim": 20},
    "tiered_sparse_linear_values_grad": {**FORWARD, "table": Made("cache"), "input_dim": 20},
    "message_port": {"host": "127.0.0.1"},
    "connect_messages": {"address": Made("port"), "host": "127.0.0.1", "session": 3,
                         "seconds": 0.2},
    "send_message": {"order": Var(np.zeros((), bool)), "message": [VALUES, IDS], "session": 2,
                     "number": 0},
    "receive_message": {"order": Var(np.zeros((), bool)), "T": [tf.float32], "session": 4,
                        "number": 0},
    "quantile_sketch_update": {**STATE, "ids": IDS, "values": VALUES, "weights": VALUES[:0],
                               "has_weights": False},
    "quantile_sketch_merge": {**STATE, **{f"other_{k}": v for k, v in STATE.items()}},
    "quantile_sketch_quantiles": {**STATE, "ids": IDS, "probabilities": np.array([0, 0.5, 1])},
}  # fmt: skip

INTEGERS = [0, 1, -1, 2, 3, 5, 2**31 - 1, 2**31, -(2**31), 2**50, HUGE, 2**63 - 1, -(2**63)]
FLOATS = [0.0, -0.0, 1.0, -1.0, 1e-45, 1e-38, 3e38, -3e38, math.inf, -math.inf, math.nan, 0.5]
SHAPES = [[], [0], [1], [3], [0, 0], [2, 3], [3, 0], [5, 2], [0, HUGE], [HUGE, 0], [0, HUGE, HUGE],
          [1, 2, 2], [0, 2**34], [0, 2**31, 3]]  # fmt: skip


def op_names() -> list[str]:
    """The ops that the library has registered, by the names of their wrappers."""
    names = (n.removeprefix("twml_") for n in dir(library.loaded) if n.startswith("twml_"))
    return [n for n in names if not n.endswith("_eager_fallback")]


def definition(name: str) -> Any:
    """The OpDef of an op."""
    return op_def_registry.get("Twml>" + "".join(w.capitalize() for w in name.split("_")))


def change_array(rng: random.Random, x: np.ndarray) -> Any:
    """Another array of the type: other items, one more or less, or another shape."""
    if 0 in x.shape:
        x = np.zeros([min(n, 3) for n in x.shape], x.dtype if isinstance(x, np.ndarray) else "f4")
    x, kind = np.array(x), rng.random()
    pool = FLOATS if x.dtype.kind == "f" else [False, True] if x.dtype.kind == "b" else INTEGERS

    def item() -> Any:
        with np.errstate(over="ignore"):
            return np.array(rng.choice(pool)).astype(x.dtype)

    if kind < 0.7 and x.size:
        for _ in range(rng.choice([1, 1, 2, x.size])):
            x.flat[rng.randrange(x.size)] = item()
        return x
    if kind < 0.75 and x.ndim:
        return x[: rng.randrange(len(x) + 1)]
    if kind < 0.85 and x.ndim and len(x):
        return np.concatenate([x, x[: rng.randrange(1, len(x) + 1)]])
    shape = rng.choice(SHAPES)
    if 0 in shape:  # NumPy has no arrays of no items with such sizes
        return tf.reshape(tf.zeros([0], x.dtype), shape)
    return np.full(shape, item())


def change(rng: random.Random, value: Any, allowed: list[str]) -> Any:
    """Another value of the kind of an argument."""
    if isinstance(value, Var):
        if rng.random() < 0.1:
            return tf.stack([tf.Variable(value.value).handle])[:0]
        return Var(change_array(rng, value.value))
    if isinstance(value, Made):
        kinds = ["groups", "batch", "message", "file", "cache", "many"]
        return Made(rng.choice([value.kind, rng.choice(kinds), value.kind + "*"]))
    if isinstance(value, np.ndarray | np.generic | tf.Tensor):
        return change_array(rng, value)
    if isinstance(value, list):
        kind = rng.random()
        if not value or kind < 0.2:
            return value + value[:1] if rng.random() < 0.5 else value[:-1]
        at = rng.randrange(len(value))
        return [change(rng, v, allowed) if i == at else v for i, v in enumerate(value)]
    if isinstance(value, tf.DType):
        return rng.choice([tf.int32, tf.int64, tf.float32, tf.uint8, tf.bfloat16])
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return rng.choice(allowed or ["", value, "sgd", "ftrl", "/", "a" * 300])
    return rng.choice(FLOATS if isinstance(value, float) else INTEGERS)


def change_bytes(rng: random.Random, message: np.ndarray) -> np.ndarray:
    """A message with some other bytes, or cut."""
    message = message.copy()
    for _ in range(rng.randrange(1, 4)):
        message[rng.randrange(len(message))] = rng.randrange(256)
    return message if rng.random() < 0.8 else message[: rng.randrange(len(message))]


class Caller:
    """Builds arguments and calls ops, in a folder for the files of tables."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._numbers = folder, itertools.count()
        self.port = library.loaded.twml_message_port(host="127.0.0.1").numpy()
        for session in (2, 4):
            library.loaded.twml_connect_messages(
                self.port, host="127.0.0.1", session=session, seconds=5.0
            )

    def _made(self, kind: str, rng: random.Random, kept: list[Any]) -> Any:
        lib = library.loaded
        if kind == "many":
            groups = lib.twml_group_ids(IDS, 5)
            return tf.stack([groups, groups])
        if kind.rstrip("*") == "groups":
            return lib.twml_group_ids(IDS, HUGE if kind[-1] == "*" else 5)
        if kind.rstrip("*") == "batch":
            splits = np.array([0, 1, 2, 4]) if kind[-1] == "*" else SPLITS
            return lib.twml_group_batch(IDS, VALUES, splits, 5, [], binary=False)
        if kind.rstrip("*") == "port":
            return self.port if kind == "port" else change_array(rng, self.port)
        if kind.rstrip("*") == "message":
            message = lib.twml_pack_entries(IDS, VALUES, SPLITS, parts=1, input_dim=5)[0].numpy()
            return change_bytes(rng, message) if kind[-1] == "*" else message
        cache = tf.Variable(tf.zeros([16, 2]))
        path = str(self._folder / str(next(self._numbers)))
        rows = lib.twml_open_tiered_rows(cache.handle, tf.zeros([2]), path=path, **FILE)
        kept += [cache, rows]
        handle = rows if kind.rstrip("*") == "file" else cache.handle
        return tf.stack([handle])[:0] if kind[-1] == "*" else handle

    def build(self, value: Any, rng: random.Random, kept: list[Any]) -> Any:
        """An argument for the op; `kept` gets what must live as long as the call."""
        if isinstance(value, list):
            return [self.build(v, rng, kept) for v in value]
        if isinstance(value, Made):
            return self._made(value.kind, rng, kept)
        if isinstance(value, Var):
            kept.append(tf.Variable(value.value))
            return kept[-1].handle
        if isinstance(value, str) and value == "new":
            return str(self._folder / str(next(self._numbers)))
        return value

    def call(
        self, name: str, given: dict[str, Any], rng: random.Random
    ) -> tuple[list[Any], list[Any]]:
        """Calls an op, sometimes from a graph. Returns its outputs and the variables."""
        op = getattr(library.loaded, "twml_" + name)
        kept: list[Any] = []
        built = {k: self.build(v, rng, kept) for k, v in given.items()}
        mode = rng.choice([0, 0, 0, 1, 2])  # eager, or traced without or with shapes
        if name == "receive_message":
            sent = [VALUES] if built["T"] == [tf.float32] else [np.uint8([1, 2, 3])]

            def both(**inputs: Any) -> Any:
                send = library.loaded.twml_send_message(
                    inputs["order"], sent, session=built["session"], number=built["number"]
                )
                with tf.control_dependencies([send]):
                    return op(**built)

            return tf.nest.flatten(tf.function(both, autograph=False)(order=built["order"])), kept
        attributes = {a.name for a in definition(name).attr}
        inputs = {k: self.tensors(name, k, v) for k, v in built.items() if k not in attributes}
        rest = {k: v for k, v in built.items() if k in attributes}
        if mode == 0:
            return tf.nest.flatten(op(**inputs, **rest)), kept

        def traced(inputs: Any) -> Any:
            made = op(**inputs, **rest)
            return None if isinstance(made, tf.Operation) else made

        specs = tf.nest.map_structure(
            lambda x: tf.TensorSpec(None if mode == 1 else x.shape, x.dtype), inputs
        )
        made = tf.function(traced, input_signature=[specs], autograph=False)(inputs)
        return [] if made is None else tf.nest.flatten(made), kept

    def tensors(self, name: str, key: str, value: Any) -> Any:
        """An input as a tensor, or a list of tensors. A Python number has the type of the op."""
        if isinstance(value, list):
            return [self.tensors(name, key, v) for v in value]
        arg = next(a for a in definition(name).input_arg if a.name == key)
        if isinstance(value, int | float) and arg.type:
            return tf.constant(value, tf.dtypes.as_dtype(arg.type))
        return tf.convert_to_tensor(value)


def is_sorted(x: Any) -> bool:
    """Whether the items of an array ascend."""
    x = np.asarray(x)
    return x.ndim == 1 and bool((x[1:] > x[:-1]).all())


def differs(caller: Caller, name: str, given: dict[str, Any], seed: str, native: Any) -> str:
    """How the stock op's outputs and variables differ from the native ones; empty: they do not."""
    op = getattr(stock.library, "twml_" + name, None)
    # Groups of other ids, and keys that do not ascend, give results that are not defined.
    undefined = given.get("groups") or (name == "find_keys" and not is_sorted(given["known"]))
    if op is None or undefined:
        return ""
    kept: list[Any] = []
    rng = random.Random(seed)
    try:
        built = {k: caller.build(v, rng, kept) for k, v in given.items()}
        inputs = {a.name for a in definition(name).input_arg}
        built = {k: caller.tensors(name, k, v) if k in inputs else v for k, v in built.items()}
        outputs = tf.nest.flatten(op(**built))
    except (*ANSWERS, NotImplementedError):  # it refuses other arguments than the native op
        return ""
    except Exception as e:
        return f"stock: {type(e).__name__}: {e}"[:300]
    pairs = zip([*native[1], *native[0]], [*kept, *outputs], strict=False)
    for i, (a, b) in enumerate(pairs):
        comparable = hasattr(a, "numpy") and hasattr(b, "numpy")
        if not comparable or a.dtype in (tf.variant, tf.resource):
            continue
        x, y = a.numpy(), b.numpy()
        if x.shape != y.shape:
            return f"output {i}: shapes {x.shape} and {y.shape}"
        if x.dtype.kind in "iub":
            if not np.array_equal(x, y):
                return f"output {i}: {x} and {y}"[:300]
        elif not np.allclose(x, y, rtol=1e-4, atol=1e-5, equal_nan=True):
            large = np.abs(np.nan_to_num(x, nan=0, posinf=0, neginf=0)).max(initial=0) > 1e30
            if not large and np.isfinite(x).all() and np.isfinite(y).all():
                return f"output {i}: {x} and {y}"[:300]
    return ""


def run_case(caller: Caller, name: str, number: int) -> tuple[str, str]:
    """Runs one case, a seed if its number is negative, and returns its result and the reason."""
    seed = f"{name} {number}"
    rng = random.Random(seed)
    given = dict(SEEDS[name])
    allowed = {a.name: [x.decode() for x in a.allowed_values.list.s] for a in definition(name).attr}
    for _ in range(rng.choice([1, 1, 1, 1, 2]) if number >= 0 else 0):
        if given:
            key = rng.choice(list(given))
            given[key] = change(rng, given[key], allowed.get(key, []))
    build = rng.random()
    try:
        native = caller.call(name, given, random.Random(build))
        for x in native[0]:
            if hasattr(x, "numpy") and x.dtype not in (tf.variant, tf.resource):
                x.numpy()
    except ANSWERS as e:
        return "refused", str(e)
    except Exception as e:
        return "finding", f"{type(e).__name__}: {e}"[:300]
    # The other op builds its own variables; the first draw of the call chooses its mode.
    found = differs(caller, name, given, str(build), native)
    return ("finding", found) if found else ("ran", "")


def limit_memory() -> None:
    """Sizes of gigabytes are then refused, and do not take the memory of other programs."""
    status = Path("/proc/self/status").read_text()
    most = int(status.split("VmSize:")[1].split()[0]) * 1024 + 2**31
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def run_child(names: list[str], first: int, count: int, seconds: float) -> None:
    """Runs cases of ops in turn, and prints what they were and how many ran."""
    limit_memory()
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        caller = Caller(Path(folder))
        for number in range(first, first + count):
            for name in names:
                print(f"case {name} {number}", flush=True)
                result, found = run_case(caller, name, number)
                counts[name][result] += 1
                if result == "finding":
                    print(f"finding {name} {number}: {found}", flush=True)
            if time.monotonic() > end:
                break
        print("counts " + json.dumps(counts), flush=True)


def main(arguments: list[str]) -> int:
    """Runs children until the time is over, one after another; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--case", nargs=2, metavar=("OP", "NUMBER"), help="runs one case here")
    parser.add_argument(
        "--child", nargs=2, type=int, metavar=("FIRST", "COUNT"), help="runs cases here"
    )
    parser.add_argument("--ops", nargs="*", default=op_names())
    options = parser.parse_args(arguments)
    if options.case:
        limit_memory()
        with tempfile.TemporaryDirectory() as folder:
            print(*run_case(Caller(Path(folder)), options.case[0], int(options.case[1])))
        return 0
    if options.child:
        run_child(options.ops, *options.child, options.seconds)
        return 0
    total: collections.Counter[str] = collections.Counter()
    findings, first, end, each = [], 0, time.monotonic() + options.seconds, 100
    while (left := end - time.monotonic()) > 0:
        command = [sys.executable, "-m", "tests.fuzz.ops", "--seconds", str(left)]
        command += ["--child", str(first), str(each), "--ops", *options.ops]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=left + 600)
        lines = done.stdout.splitlines()
        findings += [line for line in lines if line.startswith("finding ")]
        if done.returncode != 0:
            cases = [line for line in lines if line.startswith("case ")]
            findings.append(f"exit status {done.returncode} in {cases[-1:]}")
        for line in lines:
            if line.startswith("counts "):
                for counts in json.loads(line.removeprefix("counts ")).values():
                    total.update(counts)
        first += each
    for line in findings:
        print(line)
    print(f"{total['ran']} calls ran, {total['refused']} were refused, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.exit(main(sys.argv[1:]))
