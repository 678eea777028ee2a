"""A fused step needs memory for the entries and the output, not for the gradient of the table."""

import json
import subprocess
import sys

PROGRAM = """
import json, resource
import numpy as np
import tensorflow as tf
from twml_ops import ops

N, D, B, K = 60_000, 512, 600, 120_000
rng = np.random.default_rng(0)
ids = tf.constant(rng.integers(0, N, K))
values = tf.constant(rng.normal(size=K), tf.float32)
splits = tf.range(0, K + 1, K // B, dtype=tf.int64)
out_grad = tf.ones([B, D])
tables = [tf.Variable(tf.zeros([N, D])) for _ in range(2)]
for table in tables:
    table.assign_add(tf.ones([N, D]))  # its pages are there from now on

def step_on(table, fuse):
    @tf.function
    def step(ids, values, splits, out_grad):
        with tf.GradientTape() as tape:
            y = ops.sparse_linear(ids, values, splits, table)
        gradient = tape.gradient(y, table, output_gradients=out_grad)
        ops.apply_rows("sgd", table, [], gradient, [0.1, 0.0], fuse=fuse)
    return step

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

few = (ids[:200], values[:200], splits[:2], out_grad[:1])
found = {}
for name, table in zip(("fused", "slices"), tables):
    step = step_on(table, name == "fused")
    step(*few)  # traced, and the threads started
    before = peak()
    step(ids, values, splits, out_grad)
    found[name] = peak() - before
print(json.dumps(found))
"""
MB = 2**20


def test_a_fused_step_never_stores_the_gradient():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True
    )
    grown = json.loads(done.stdout.splitlines()[-1])
    # 120,000 entries and an output of 1.2 MB, beside a gradient of 50,000 rows: 104 MB.
    assert grown["fused"] < 24 * MB
    assert grown["slices"] > 80 * MB  # the gradient can be seen by this test
