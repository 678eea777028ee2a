"""What differs between Keras 2 and Keras 3, in one place. `tf.keras` is whichever is active."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import tensorflow as tf

# In TensorFlow 2.15 tf.keras does not say its version; there it is the package keras.
VERSION: str = getattr(tf.keras, "__version__", None) or importlib.metadata.version("keras")
KERAS_3: bool = VERSION.startswith("3.")

PACKAGE = "Twml"

serializable = tf.keras.utils.register_keras_serializable(package=PACKAGE)


def no_autocast() -> dict[str, Any]:
    """The `add_weight` argument that keeps mixed precision from wrapping a table."""
    return {"autocast": False} if KERAS_3 else {"experimental_autocast": False}
