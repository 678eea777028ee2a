"""Single ops: which devices they accept tensors from, and which they run on."""

import numpy as np
import pytest
import tensorflow as tf

from tests.gpu.scenario import D, N, assert_on, batch, has_gpu, scenario
from twml_ops import layers, ops


def call_all(values):
    """Calls ops of every kind with values on any device."""
    ids = tf.cast(tf.abs(values) * 10, tf.int64)
    splits = tf.constant([0, 3, 3, 8], tf.int64)
    state = ops.sketch_update(ops.empty_sketch(0.1), ids, values)
    found = [[1, 2], [0.0, 1.0], [0, 1, 2]]  # feature ids, boundaries, splits
    bucket_ids, bucket_values, _ = ops.percentile_discretize(ids, values, splits, *found)
    (packed,) = ops.pack_entries(ids, values, splits, 100)
    return {
        "product": ops.sparse_linear(ids, values, splits, tf.reshape(tf.range(400.0), [100, 4])),
        "hash": ops.hash_ids(ids, 8),
        "unpacked": ops.unpack_entries(packed)[1],
        "sums": ops.sum_duplicates(ids, values[:, tf.newaxis])[1],
        "splits": ops.csr_from_indices(tf.stack([ids * 0, ids], axis=1), 2)[1],
        "buckets": bucket_ids,
        "values": bucket_values,
        "quantiles": ops.sketch_quantiles(state, ids[:2], [0.5]),
    }


@scenario
def ops_accept_tensors_on_any_device():
    numbers = np.random.default_rng(0).normal(size=8).astype(np.float32)
    devices = ["CPU:0"] if not has_gpu() else ["CPU:0", "GPU:0", "GPU:1"]
    found = []
    for device in devices:
        with tf.device(device):
            values = tf.identity(tf.constant(numbers))
            found += [call_all(values), tf.function(call_all)(values)]
        found += [call_all(values), tf.function(call_all)(values)]
    for other in found[1:]:
        for name, value in other.items():
            np.testing.assert_array_equal(value, found[0][name], err_msg=name)
    return {name: value.numpy() for name, value in found[0].items()}


@scenario
def graph_nodes_keep_the_job_and_task_of_their_scope():
    with tf.Graph().as_default(), tf.device("/job:ps/task:1"):
        hashed = ops.hash_ids([1, 2], 5)
    device = tf.DeviceSpec.from_string(hashed.op.device)
    assert (device.job, device.task) == ("ps", 1)
    assert device.device_type == (None if not has_gpu() else "CPU")
    return {}


@scenario
def stock_and_xla_ops_run_on_any_device():
    table = tf.Variable(tf.ones([N, D]))
    assert_on("GPU", table)
    inputs, _ = batch("padded")
    linear = layers.SparseLinear(D, N)
    with ops.xla_compatible():
        outputs = linear(inputs)
        assert_on("GPU", linear.kernel)

    @tf.function
    def nodes(ids, values):
        with ops.xla_compatible():
            return linear((ids, values))

    graph = nodes.get_concrete_function(*inputs).graph
    assert not [op.name for op in graph.get_operations() if "CPU" in op.device]
    return {"outputs": outputs.numpy()}


@scenario
def a_state_on_a_gpu_is_rejected():
    if not has_gpu():
        return {}
    state = tf.Variable(tf.ones(N), name="mine")
    message = "'mine:0' must be on the host"
    with pytest.raises(ValueError, match=message):
        ops.online_standardize([0], [1.0], state)
    return {}
