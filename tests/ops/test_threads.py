"""The ops give the same bits for any number of intra-op threads, and for every run."""

import json

import pytest

from tests import forked

PROGRAM = """
import hashlib, json, sys
import numpy as np
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
from twml_ops import ops

RULES = {
    "sgd": (0, [0.1, 0.01]),
    "momentum": (1, [0.1, 0.0, 0.9, 0.0]),
    "adagrad": (1, [0.1, 0.0, 1e-7]),
    "rowwise_adagrad": (1, [0.1, 0.0, 1e-7]),
    "lazy_adam": (2, [0.1, 0.0, 0.9, 0.999, 1e-7]),
    "ftrl": (2, [0.1, 0.0, -0.5, 0.01, 0.01, 0.0]),
}
N, D, B = 3000, 40, 300
rng = np.random.default_rng(0)
lengths = rng.integers(0, 200, B)
lengths[7] = 9000  # longer than a piece
splits = tf.constant(np.concatenate([[0], np.cumsum(lengths)]), tf.int64)
K = int(splits[-1])
ids = tf.constant(np.where(rng.random(K) < 0.3, 5, rng.integers(0, N, K)), tf.int64)
values = tf.constant(rng.normal(size=K), tf.float32)
start = rng.normal(size=(N, D)).astype(np.float32)
out_grad = tf.constant(rng.normal(size=(B, D)), tf.float32)

def digest(tensors):
    data = b"".join(tf.cast(t, tf.float32).numpy().tobytes() for t in tensors)
    return hashlib.sha256(data).hexdigest()

found = {}
for dtype in ("float32", "bfloat16"):
    for rule, (num_slots, hyper) in RULES.items():
        for fuse in (True, False):
            table = tf.Variable(tf.cast(start, dtype))
            shape = [N] if rule == "rowwise_adagrad" else [N, D]
            slots = [tf.Variable(tf.fill(shape, 0.1)) for _ in range(num_slots)]

            @tf.function
            def step():
                with tf.GradientTape() as tape:
                    y = ops.sparse_linear(ids, values, splits, table)
                gradient = tape.gradient(y, table, output_gradients=out_grad)
                ops.apply_rows(rule, table, slots, gradient, hyper, fuse=fuse, seed=3)
                return y

            outputs = [step() for _ in range(2)]
            found[f"{dtype} {rule} {'fused' if fuse else 'slices'}"] = digest(
                [*outputs, table, *slots]
            )
print(json.dumps(found))
"""


def run(threads):
    done = forked.run(["-c", PROGRAM, str(threads)], check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def one_thread():
    return run(1)


@pytest.mark.one_tf
@pytest.mark.parametrize("threads", [2, 4])
def test_any_number_of_threads_gives_the_same_bits(threads, one_thread):
    assert run(threads) == one_thread


def test_fused_and_sliced_updates_are_bit_identical(one_thread):
    fused = {k: v for k, v in one_thread.items() if k.endswith("fused")}
    assert len(fused) == 12
    for name, bits in fused.items():
        assert one_thread[name.replace("fused", "slices")] == bits
    assert len(set(fused.values())) == 12
