"""Settings that must come before TensorFlow starts its devices, whichever test is the first."""

import contextlib
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

with contextlib.suppress(ImportError):  # tests/core needs no TensorFlow
    import tensorflow as tf

    # Four CPU devices: replicas.
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
    )
