"""A fused step allocates the entries and the output, and never the gradient of the table.

TensorFlow's own record of a step is read, which has every buffer that a kernel asks its allocator
for. The size of the process would also depend on the allocator: one that pools its pages, as
oneDNN's does, may already hold them.
"""

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import ops

v1 = tf.compat.v1
N, D, B, K = 20_000, 128, 200, 40_000


def largest_buffers(fuse):
    """The bytes of a step's largest allocation or output, and of the rows of its gradient."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, N, K)
    options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
    with tf.Graph().as_default(), v1.Session() as session:
        zeros = tf.zeros_initializer()
        table = v1.get_variable("table", [N, D], initializer=zeros, use_resource=True)
        values = tf.constant(rng.normal(size=K), tf.float32)
        splits = tf.range(0, K + 1, K // B, dtype=tf.int64)
        with tf.GradientTape() as tape:
            y = ops.sparse_linear(tf.constant(ids), values, splits, table)
        gradient = tape.gradient(y, table, output_gradients=tf.ones([B, D]))
        step = ops.apply_rows("sgd", table, [], gradient, [0.1, 0.0], fuse=fuse)
        session.run(v1.global_variables_initializer())
        session.run(table.assign_add(tf.ones([N, D])))  # in a buffer that nothing else holds
        sizes = []
        for _ in range(2):  # a kernel may keep a buffer for the next step
            record = v1.RunMetadata()
            session.run([step, y], options=options, run_metadata=record)
            for node in (n for d in record.step_stats.dev_stats for n in d.node_stats):
                outputs = [o.tensor_description.allocation_description for o in node.output]
                sizes += [m.peak_bytes for m in node.memory]
                sizes += [o.requested_bytes for o in outputs]
    return max(sizes), len(np.unique(ids)) * D * 4


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "by slices"])
def test_only_a_step_by_slices_stores_the_gradient(fuse):
    largest, gradient = largest_buffers(fuse)
    assert largest > 0  # there is a record
    assert (largest >= gradient) != fuse
    if fuse:
        assert largest < gradient / 8
