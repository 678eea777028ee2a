"""A `model_fn` of a Keras model, what one needs to write one, and receivers for its export."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from twml_ops.estimator.optimizer import GraphOptimizer, as_v1, update_dependencies
from twml_ops.estimator.warm_start import warm_start
from twml_ops.export.model_inputs import ModelInputs
from twml_ops.ops._library import library

v1 = tf.compat.v1
Receiver = Callable[[], Any]
_PREDICT = tf.estimator.ModeKeys.PREDICT
_STATE = ("_feature_ids", "_boundaries", "_splits")


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
    """Makes a `model_fn` for `tf.estimator.Estimator`.

    Args:
        model_builder: a function that returns a new Keras model (or a layer, or a function of
            `(features, training)`). It is called in each graph.
        optimizer: one of `twml_ops.optimizers` or `tf.compat.v1.train`, or a function that returns
            one. An optimizer of `tf.compat.v1.train` belongs to a graph, so it needs the function.
        metrics: a function that returns the Keras metrics of an evaluation, called in its graph.
            The metric "loss" is always computed.
        loss: the name of a Keras loss, or a function (labels, predictions) → losses [B]. The
            weighted losses are averaged over the batch, and the model's own losses are added.
            As in `fit`, labels [B] match predictions [B, 1], and the reverse.
        weight_feature: name of the feature that has the examples' weights. It is not passed to the
            model, and predictions do not need it.
        prediction_name: name of the predictions' tensor.
        warm_start_from: the checkpoint from which training starts; see `warm_start`.
        warm_start_scopes: the scopes of `warm_start`.

    Returns:
        A function `model_fn(features, labels, mode)`. It raises TypeError if the optimizer would
        not train anything (see `as_v1`), and ValueError if the weights are missing in training or
        evaluation.
    """
    losses = tf.keras.losses.get(loss)

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        training = mode == tf.estimator.ModeKeys.TRAIN
        weights = None
        if weight_feature is not None and isinstance(features, dict):
            features = dict(features)
            weights = features.pop(weight_feature, None)
        if weight_feature is not None and weights is None and mode != _PREDICT:
            raise ValueError(
                f"weight_feature must be one of the features {_names(features)}, got "
                f"{weight_feature!r}"
            )
        model = model_builder()
        predictions = model(features, training=training)
        if training and warm_start_from is not None:
            warm_start(warm_start_from, warm_start_scopes)
        named = {prediction_name: predictions}
        if mode == _PREDICT:
            output = tf.estimator.export.PredictOutput(named)
            return tf.estimator.EstimatorSpec(
                mode, predictions=named, export_outputs={"serving_default": output}
            )
        total = _mean(losses(_shaped_like(predictions, labels), predictions), weights)
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


def _names(features: Any) -> list[str]:
    return sorted(features) if isinstance(features, dict) else []


def _shaped_like(predictions: tf.Tensor, labels: Any) -> tf.Tensor:
    """Labels of the rank of the predictions; [B] and [B, 1] would be broadcast to [B, B]."""
    if not (isinstance(labels, tf.Tensor) and isinstance(predictions, tf.Tensor)):
        return labels  # of another kind, for a loss that takes it
    ranks = labels.shape.rank, predictions.shape.rank
    if None in ranks or abs(ranks[0] - ranks[1]) != 1:
        return labels
    if ranks[0] < ranks[1] and predictions.shape[-1] == 1:
        return labels[..., tf.newaxis]
    if ranks[0] > ranks[1] and labels.shape[-1] == 1:
        return tf.squeeze(labels, -1)
    return labels


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


def metric_ops(
    metrics: Iterable[tf.keras.metrics.Metric] | Mapping[str, tf.keras.metrics.Metric],
    labels: Any,
    predictions: Any,
    weights: Any = None,
) -> dict[str, tuple[tf.Tensor, Any]]:
    """Returns the `eval_metric_ops` of Keras metrics.

    Args:
        metrics: Keras metrics, or name → metric. They must be created in the current graph.
        labels: tensor, as the metrics take it.
        predictions: tensor, as the metrics take it.
        weights: the weights of the examples, or None.

    Returns:
        Name → (value, update op).
    """
    items: Any = metrics
    named = items.items() if isinstance(items, Mapping) else [(m.name, m) for m in items]
    result = {}
    for name, metric in named:
        update = metric.update_state(labels, predictions, sample_weight=weights)
        for variable in metric.variables:
            # Estimators initialize local variables at the start of each evaluation.
            tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.LOCAL_VARIABLES, variable)
        result[name] = (metric.result(), tf.group(*metric.updates) if update is None else update)
    return result


def discretizer_factory(layer: Any) -> Callable[[], Any]:
    """Makes a function that makes a copy of an adapted discretizer in the current graph.

    Args:
        layer: a `PercentileDiscretizer` or `HashingDiscretizer` that was adapted in eager mode.

    Returns:
        A function without arguments, to be called in a `model_fn`. It returns a layer with the same
        boundaries, in variables that are saved in the estimator's checkpoints.

    Raises:
        ValueError: the layer is not adapted.
    """
    if not layer.adapted:
        raise ValueError(f"{type(layer).__name__} '{layer.name}' is not adapted: call adapt(data)")
    config = layer.get_config()
    state = [v.numpy() for v in layer.state_variables]

    def make() -> Any:
        with tf.Graph().as_default():  # The variables of this graph are replaced below.
            copy = type(layer).from_config(config)
        for attribute, value in zip(_STATE, state, strict=True):
            name = attribute.removeprefix("_")
            with tf.compat.v1.name_scope(layer.name + "/"), library.on_host():
                variable = tf.Variable(value, trainable=False, shape=[None], name=name)
            setattr(copy, attribute, variable)
        return copy

    return make


def raw_receiver(specs: Mapping[str, Any]) -> Receiver:
    """Makes a `serving_input_receiver_fn` of dense tensors that are fed by name.

    Args:
        specs: feature → `tf.TensorSpec`, `tf.RaggedTensorSpec` or `tf.SparseTensorSpec`. A ragged
            feature `g_ids` is fed as `g_ids` [K] and `g_row_splits` int64 [B + 1]; see
            `twml_ops.export.model_inputs.ModelInputs`.

    Returns:
        An argument of `tf.estimator.Estimator.export_saved_model`.
    """
    features = ModelInputs(None, dict(specs))

    def receive() -> Any:
        tensors = {
            name: v1.placeholder(spec.dtype, spec.shape, name)
            for name, spec in features.flat_specs().items()
        }
        return tf.estimator.export.ServingInputReceiver(features.assemble(tensors), tensors)

    return receive


def example_receiver(parsing: Mapping[str, Any]) -> Receiver:
    """Makes a `serving_input_receiver_fn` of serialized tf.Examples, string [B], fed as `examples`.

    Args:
        parsing: feature → its configuration for `tf.io.parse_example`: a `tf.io.RaggedFeature` for
            the ids or values of a batch, a `tf.io.FixedLenFeature` for a dense tensor.

    Returns:
        An argument of `tf.estimator.Estimator.export_saved_model`.
    """

    def receive() -> Any:
        examples = v1.placeholder(tf.string, [None], "examples")
        features = tf.io.parse_example(examples, dict(parsing))
        return tf.estimator.export.ServingInputReceiver(features, {"examples": examples})

    return receive
