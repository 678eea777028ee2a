"""Settings of Hypothesis and of TensorFlow's devices, and a fresh Keras for a test."""

import contextlib
import os

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run, and as much time for each as a busy machine takes.
settings.register_profile(
    "twml",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("twml")

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

KERAS_3 = True
with contextlib.suppress(ImportError):  # tests/core needs no TensorFlow
    import tensorflow as tf

    KERAS_3 = hasattr(tf.keras, "ops")

    # Four CPU devices: replicas.
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
    )


@pytest.fixture(autouse=True)
def _random_state_in_kernels():
    """Keras 2 keeps random state in kernels unless told otherwise, and `train` tells it so."""
    if not KERAS_3:
        tf.keras.backend.experimental.disable_tf_random_generator()


@pytest.fixture
def fresh_keras():
    """The names, the precision and the seed that a new process has."""
    tf.keras.backend.clear_session()
    tf.keras.mixed_precision.set_global_policy("float32")
    tf.keras.utils.set_random_seed(1)
    yield
    tf.keras.mixed_precision.set_global_policy("float32")
