"""Settings that must come before TensorFlow starts its devices, and a fresh Keras for a test."""

import contextlib
import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

with contextlib.suppress(ImportError):  # tests/core needs no TensorFlow
    import tensorflow as tf

    # Four CPU devices: replicas.
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
    )


@pytest.fixture
def fresh_keras():
    """The names, the precision and the seed that a new process has."""
    tf.keras.backend.clear_session()
    tf.keras.mixed_precision.set_global_policy("float32")
    tf.keras.utils.set_random_seed(1)
    yield
    tf.keras.mixed_precision.set_global_policy("float32")
