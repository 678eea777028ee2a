"""One model whose probabilities are the mean probabilities of several models.

inputs ──┬─ member_0 ─┬─ mean
         ├─ member_1 ─┤
         └─ ...      ─┘
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from twml_ops._keras import input_spec, symbolic_inputs
from twml_ops.models.mean_logit import SigmoidOfMeanLogit


def ensemble(
    members: Sequence[tf.keras.Model],
    name: str = "ensemble",
    *,
    combination: Literal["mean_probability", "mean_logit"] = "mean_probability",
    weights: Sequence[float] | None = None,
) -> tf.keras.Model:
    """Combines trained models to one model that returns the mean of their probabilities.

    Members that differ only in their seed make different errors. The mean has a lower log loss than
    a member has on average, because the log loss is convex in the probability (Lakshminarayanan et
    al., "Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles", NIPS 2017).
    By default probabilities are averaged, as in that paper, and not logits: the mean prediction of
    the ensemble is then the mean over its members' mean predictions, so it is calibrated if they
    are.

    The result is a functional Keras model of stock layers, with the members nested in it. It is
    saved, loaded, calibrated and exported as any other model. It shares its weights with the
    members, but has none of their optimizers.

    Args:
        members: functional models with the same inputs, by name, shape and type, and the same
            outputs: probabilities [B, 1], or a dict of them by label.
        name: name of the model.
        combination: "mean_probability"; or "mean_logit", the probability of the mean of the logits.
        weights: the weights of the members in the mean of the probabilities, not negative with sum
            1; None: equal ones.

    Returns:
        An uncompiled model with the inputs and the outputs of a member. `ensemble_members` returns
        its members.

    Raises:
        ValueError: there are fewer than two members, or they differ in inputs or outputs; or the
            weights do not fit.
    """
    if len(members) < 2:
        raise ValueError(f"members must be at least two models, got {len(members)}")
    signatures = [_signature(member, i) for i, member in enumerate(members)]
    for i, signature in enumerate(signatures):
        if signature != signatures[0]:
            raise ValueError(
                "members must have the same inputs and outputs: members[0] has "
                f"{signatures[0]}, members[{i}] has {signature}"
            )
    mean_of = _combination(combination, weights, len(members))
    inputs = tf.nest.map_structure(_new_input, symbolic_inputs(members[0]))
    outputs = [
        # A model around the layers has a name of its own, and no optimizer with its slots.
        tf.keras.Model(member.input, member.output, name=f"member_{i}")(inputs)
        for i, member in enumerate(members)
    ]
    if isinstance(outputs[0], dict):
        mean: Any = {
            label: mean_of([output[label] for output in outputs], f"mean_{i}")
            for i, label in enumerate(outputs[0])
        }
    else:
        mean = mean_of(outputs, "mean")
    return tf.keras.Model(inputs, mean, name=name)


def ensemble_members(model: tf.keras.Model) -> list[tf.keras.Model]:
    """The members of an ensemble.

    Args:
        model: any model.

    Returns:
        The models that are nested in `model`, in the order in which `ensemble` got them, also if
        layers such as a calibration follow the mean; empty if it is no ensemble.
    """
    return [layer for layer in model.layers if isinstance(layer, tf.keras.Model)]


def _combination(
    combination: str, weights: Sequence[float] | None, count: int
) -> Callable[[Sequence[Any], str], Any]:
    """The function (outputs, name) that combines the members' outputs of a label."""
    if combination == "mean_logit":
        if weights is not None:
            raise ValueError("weights must be None with combination='mean_logit'")
        return lambda outputs, name: SigmoidOfMeanLogit(name=name, dtype="float32")(outputs)
    if combination != "mean_probability":
        raise ValueError(f"combination must be mean_probability or mean_logit, got {combination!r}")
    if weights is None:
        return lambda outputs, name: tf.keras.layers.Average(name=name, dtype="float32")(outputs)
    fit = len(weights) == count and all(0 <= w <= 1 for w in weights)
    if not fit or not math.isclose(sum(weights), 1, rel_tol=1e-6):
        raise ValueError(f"weights must be {count} numbers >= 0 with sum 1, got {list(weights)}")
    kernel = np.asarray(weights, np.float32)[:, None]

    def weighted(outputs: Sequence[Any], name: str) -> Any:
        # Layers that every export knows. The kernel comes back from files.
        mean = tf.keras.layers.Dense(1, use_bias=False, trainable=False, name=name, dtype="float32")
        joined = tf.keras.layers.Concatenate(name=f"{name}_members", dtype="float32")(outputs)
        result = mean(joined)
        mean.set_weights([kernel])
        return result

    return weighted


def _new_input(tensor: Any) -> Any:
    spec = input_spec(tensor)
    return tf.keras.Input(
        spec.shape[1:],
        dtype=spec.dtype,
        name=_name(tensor),
        ragged=isinstance(spec, tf.RaggedTensorSpec),
        sparse=isinstance(spec, tf.SparseTensorSpec),
    )


def _signature(member: tf.keras.Model, index: int) -> tuple[list[str], list[str]]:
    """The inputs and the outputs of a model in words, to be compared and shown."""
    inputs = symbolic_inputs(member)
    if inputs is None:
        raise ValueError(f"members must be functional models, members[{index}] is not")
    outputs = member.output
    by_label = outputs if isinstance(outputs, dict) else {"output": outputs}
    return (
        [
            f"{_name(t)}: {type(input_spec(t)).__name__} {t.dtype} {list(t.shape)}"
            for t in tf.nest.flatten(inputs)
        ],
        [f"{label}: {list(tensor.shape)}" for label, tensor in by_label.items()],
    )


def _name(tensor: Any) -> str:
    return tensor.name.split(":")[0]
