"""Where TensorFlow has no tf.estimator, the import says what to use instead."""

import importlib

import pytest
import tensorflow as tf


@pytest.mark.skipif(hasattr(tf, "estimator"), reason="TensorFlow has tf.estimator")
def test_import_says_what_to_use_instead():
    with pytest.raises(ImportError, match=r"has no tf.estimator.*model.fit.*twml_ops.export"):
        importlib.import_module("twml_ops.estimator")
