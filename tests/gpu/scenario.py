"""Registry of the GPU scenarios, and what they share.

A scenario is a function that runs part of the package and returns numbers. It runs twice: in a
process with the simulated GPU, where it also checks devices and copies, and in pytest's process
without a GPU, whose numbers are the expected ones.
"""

import contextlib
import ctypes

import numpy as np
import tensorflow as tf

from twml_ops import data, layers
from twml_ops.ops._tape import tf_variable

N, D, B, WIDTH = 2000, 16, 64, 10
SCENARIOS = {}
REAL_GPU = "real"
_gpu = None  # the library of the simulated GPU, or REAL_GPU, in the process that has one


def load_gpu(path):
    """Registers the simulated GPU in this process; or divides a real one into two."""
    global _gpu
    if path == REAL_GPU:
        _gpu = path
        parts = [tf.config.LogicalDeviceConfiguration(memory_limit=4096)] * 2
        first = tf.config.list_physical_devices("GPU")[0]
        tf.config.set_visible_devices([first], "GPU")
        tf.config.set_logical_device_configuration(first, parts)
        tf.config.experimental.enable_tensor_float_32_execution(False)
        return
    from tensorflow.python.framework import load_library

    load_library.load_pluggable_device_library(path)
    _gpu = ctypes.CDLL(path)
    for name in ("to_device", "to_host"):
        getattr(_gpu, f"fake_gpu_bytes_{name}").restype = ctypes.c_int64
    _gpu.fake_gpu_largest_copy.restype = ctypes.c_int64
    assert len(tf.config.list_logical_devices("GPU")) == 2


def has_gpu():
    return _gpu is not None


def counts_copies():
    """Whether the GPU counts the bytes of copies."""
    return has_gpu() and _gpu != REAL_GPU


def scenario(function):
    """Registers a scenario."""
    SCENARIOS[function.__name__] = function
    return function


def run_scenario(name):
    """Returns the numbers of a scenario, by name, in a fresh Keras."""
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(1)
    return {key: np.asarray(value).tolist() for key, value in SCENARIOS[name]().items()}


def assert_on(kind, *variables):
    """Asserts that variables are on a device of that kind, if there is a GPU."""
    for variable in variables:
        device = tf_variable(variable).device
        device_type = tf.DeviceSpec.from_string(device).device_type
        assert not has_gpu() or device_type == kind, f"{variable.name} is on {device}"


def copied_bytes(step):
    """Returns the bytes to the GPU, the bytes to the host and the largest copy of one call."""
    if not counts_copies():
        step()
        return 0, 0, 0
    _gpu.fake_gpu_reset()
    step()
    counters = ("fake_gpu_bytes_to_device", "fake_gpu_bytes_to_host", "fake_gpu_largest_copy")
    return tuple(getattr(_gpu, name)() for name in counters)


@contextlib.contextmanager
def full_gpu():
    """In the block the simulated GPU has no memory for tensors of 1 MiB or more."""
    _gpu.fake_gpu_set_full(1)
    try:
        yield
    finally:
        _gpu.fake_gpu_set_full(0)


def weights_of(*variables):
    return {str(i): np.array(tf.cast(v, tf.float32)) for i, v in enumerate(variables)}


def arrays(seed=0, rows=B, top=N):
    """Returns ids, values and labels. Every row has WIDTH entries; ids repeat."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, top, (rows, WIDTH))
    values = rng.normal(size=ids.shape).astype(np.float32)
    return ids, values, rng.integers(0, 2, (rows, 1)).astype(np.float32)


def batch(form, **kwargs):
    """Returns a batch on the host, like an input pipeline, in one of the batch forms."""
    ids, values, labels = arrays(**kwargs)
    with tf.device("CPU:0"):
        if form == "padded":
            return (tf.constant(ids), tf.constant(values)), tf.constant(labels)
        if form == "sparse":
            rows = np.repeat(np.arange(len(ids)), WIDTH)
            indices = np.stack([rows, ids.ravel()], axis=1)
            sparse = tf.SparseTensor(indices, values.ravel(), [len(ids), N])
            return sparse, tf.constant(labels)
        splits = tf.constant(np.arange(len(ids) + 1) * WIDTH)
        flat = [tf.constant(a.ravel()) for a in (ids, values)]
        pair = tuple(tf.RaggedTensor.from_row_splits(f, splits, validate=False) for f in flat)
        return (pair if form == "ragged" else pair[0]), tf.constant(labels)


def sparse_mlp_data(rows):
    """Returns a schema, its features on the host, and a dataset of them with labels."""
    schema = data.Schema(("a", "b"), ("c",), 50, "x")
    rng = np.random.default_rng(0)

    def ragged(flat):
        with tf.device("CPU:0"):
            return tf.RaggedTensor.from_uniform_row_length(tf.constant(flat), 2)

    features = {
        "continuous_ids": ragged(np.tile([0, 1], rows)),
        "continuous_values": ragged(rng.normal(size=2 * rows).astype(np.float32)),
        "categorical_ids": ragged(rng.integers(0, 1 << 60, 2 * rows)),
        "sparse_ids": ragged(rng.integers(0, 50, 2 * rows)),
        "sparse_values": ragged(rng.normal(size=2 * rows).astype(np.float32)),
    }
    labels = rng.integers(0, 2, (rows, 1)).astype(np.float32)
    return schema, features, tf.data.Dataset.from_tensor_slices((features, labels)).batch(16)


class Net(tf.keras.Model):
    """A table that Keras creates when the model is built, and a dense layer."""

    def __init__(self, **kwargs):
        super().__init__()
        self.table = layers.SparseLinear(D, N, activation="relu", **kwargs)
        self.dense = tf.keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(self.table(inputs))


def functional_model():
    inputs = tf.keras.Input((None,), dtype="int64", ragged=True)
    hidden = layers.SparseLinear(D, N, activation="relu")(inputs)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1)(hidden))


def step_of(call, optimizer, variables):
    @tf.function
    def step(inputs, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((call(inputs) - labels) ** 2)
        found = variables()
        optimizer.apply_gradients(zip(tape.gradient(loss, found), found, strict=True))
        return loss

    return step


def slots_of(optimizer, *shapes):
    """Returns the optimizer's variables of one of those shapes."""
    variables = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    return [v for v in variables if tuple(v.shape) in shapes]
