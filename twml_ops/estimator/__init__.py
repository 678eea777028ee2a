"""`tf.estimator` pipelines (TensorFlow 2.15): our layers, optimizers and metrics in graph mode.

`make_model_fn` makes a `model_fn` from a Keras model. To write one yourself, there are:

- `as_v1`, which turns an optimizer of `twml_ops.optimizers` into one of `tf.compat.v1.train`,
- `metric_ops`, which turns Keras metrics into `eval_metric_ops`,
- `discretizer_factory`, which makes a discretizer that was adapted in eager mode in each graph,
- `warm_start`, which initializes variables from a checkpoint, by scopes,
- `CheckpointHook`, which saves the training with a `twml_ops.checkpoint.CheckpointManager`.

`raw_receiver` and `example_receiver` make the argument of `export_saved_model`.
"""

import tensorflow as tf

if not hasattr(tf, "estimator"):
    raise ImportError(
        f"TensorFlow {tf.__version__} has no tf.estimator: it was removed after 2.15. Train a "
        "Keras model with `model.fit` and the same layers, optimizers and metrics, stop early with "
        "tf.keras.callbacks.EarlyStopping, and export with twml_ops.export.to_tf or to_stock_tf; "
        "or install TensorFlow 2.15."
    )

from twml_ops.estimator.checkpoint_hook import CheckpointHook
from twml_ops.estimator.model_fn import (
    discretizer_factory,
    example_receiver,
    make_model_fn,
    metric_ops,
    raw_receiver,
)
from twml_ops.estimator.optimizer import GraphOptimizer, as_v1
from twml_ops.estimator.warm_start import warm_start

__all__ = [
    "CheckpointHook",
    "GraphOptimizer",
    "as_v1",
    "discretizer_factory",
    "example_receiver",
    "make_model_fn",
    "metric_ops",
    "raw_receiver",
    "warm_start",
]
