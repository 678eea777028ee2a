"""A `model_fn` of a Keras model, an optimizer and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from twml_ops.estimator.metrics import metric_ops
from twml_ops.estimator.optimizer import GraphOptimizer, as_v1, update_dependencies
from twml_ops.estimator.warm_start import warm_start

v1 = tf.compat.v1


def make_model_fn(
    model_builder: Callable[[], Any],
    optimizer: Callable[[], Any] | Any,
    metrics: Callable[[], Iterable[Any]] | None = None,
    *,
    loss: Any = "binary_crossentropy",
    weight_feature: str | None = None,
    prediction_name: str = "probability",
    warm_start_from: str | None = None,
    warm_start_scopes: Mapping[str, str] | None = None,
) -> Callable[..., Any]:
    """A `model_fn` for `tf.estimator.Estimator`.

    Args:
        model_builder: a function that returns a new Keras model (or a layer, or a function of
            `(features, training)`). It is called in each graph.
        optimizer: one of `twml_ops.optimizers` or `tf.compat.v1.train`, or a function that returns
            one. An optimizer of `tf.compat.v1.train` belongs to a graph, so it needs the function.
        metrics: a function that returns the Keras metrics of an evaluation, called in its graph.
            The metric "loss" is always computed.
        loss: the name of a Keras loss, or a function (labels, predictions) → losses [B]. The
            weighted losses are averaged over the batch, and the model's own losses are added.
        weight_feature: name of the feature that has the examples' weights. It is not passed to the
            model.
        prediction_name: name of the predictions' tensor.
        warm_start_from: the checkpoint from which training starts; see `warm_start`.
        warm_start_scopes: the scopes of `warm_start`.

    Returns:
        A function `model_fn(features, labels, mode)`. It raises TypeError if the optimizer would
        not train anything; see `as_v1`.
    """
    losses = tf.keras.losses.get(loss)

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        training = mode == tf.estimator.ModeKeys.TRAIN
        weights = None
        if weight_feature is not None and isinstance(features, dict):
            features = dict(features)
            weights = features.pop(weight_feature, None)
        model = model_builder()
        predictions = model(features, training=training)
        if training and warm_start_from is not None:
            warm_start(warm_start_from, warm_start_scopes)
        named = {prediction_name: predictions}
        if mode == tf.estimator.ModeKeys.PREDICT:
            output = tf.estimator.export.PredictOutput(named)
            return tf.estimator.EstimatorSpec(
                mode, predictions=named, export_outputs={"serving_default": output}
            )
        total = _mean(losses(labels, predictions), weights)
        total += tf.add_n([tf.zeros([]), *getattr(model, "losses", [])])
        if not training:
            evaluated = metric_ops(metrics() if metrics else [], labels, predictions, weights)
            return tf.estimator.EstimatorSpec(
                mode, loss=total, predictions=named, eval_metric_ops=evaluated
            )
        return tf.estimator.EstimatorSpec(
            mode, loss=total, predictions=named, train_op=_train_op(optimizer, model, total)
        )

    return model_fn


def _mean(losses: tf.Tensor, weights: Any) -> tf.Tensor:
    losses = tf.reshape(losses, [-1])
    if weights is not None:
        losses *= tf.cast(tf.reshape(weights, [-1]), losses.dtype)
    return tf.reduce_mean(losses)


def _train_op(optimizer: Any, model: Any, loss: tf.Tensor) -> Any:
    made = as_v1(optimizer() if _is_factory(optimizer) else optimizer)
    updates = [
        *getattr(model, "updates", []),
        *v1.get_collection(v1.GraphKeys.UPDATE_OPS),
    ]
    pairs = [(g, v) for g, v in made.compute_gradients(loss) if g is not None]
    before = updates if isinstance(made, GraphOptimizer) else [*updates, *_computed(pairs)]
    with tf.control_dependencies(before):
        return made.apply_gradients(pairs, v1.train.get_or_create_global_step())


def _computed(pairs: Sequence[Any]) -> list[tf.Tensor]:
    # Optimizers of TensorFlow read the values of the gradients, not what they are computed from.
    gradients = [g for g, _ in pairs]
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    return [*update_dependencies(gradients), *values]


def _is_factory(optimizer: Any) -> bool:
    return callable(optimizer) and not isinstance(
        optimizer, (tf.keras.optimizers.Optimizer, v1.train.Optimizer)
    )
