"""Where a model is trained: in this process or in a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import tensorflow as tf

from twml_ops.cli.results.history import History
from twml_ops.data import Source

MakeModel = Callable[[Source], tf.keras.Model]
"""Returns an untrained model whose input transforms are adapted to a source."""


class FittedModel(NamedTuple):
    """A trained model and the record of its training."""

    model: tf.keras.Model
    history: History


class Monitored(NamedTuple):
    """Data on which the metrics are recorded during the training.

    Attributes:
        source: the data.
        name: "validation" if choices are made on these data, otherwise "evaluation".
    """

    source: Source
    name: Literal["validation", "evaluation"]


class Runner(Protocol):
    """Builds and fits the model of a run: `connect`, then `build`, then `fit`."""

    def connect(self) -> None:
        """Joins the cluster, if there is one. Must run before the process creates any tensor."""

    def build(self, make_model: Callable[[], tf.keras.Model]) -> Any:
        """Builds the untrained model.

        Args:
            make_model: returns an uncompiled model whose input transforms are adapted. In a
                cluster only the chief calls it.

        Returns:
            What `fit` takes. It has the `name` and the `count_params` of a Keras model.
        """

    def fit(
        self,
        model: Any,
        train: Source,
        monitored: Monitored | None,
        *,
        epochs: int,
        callbacks: Sequence[tf.keras.callbacks.Callback] = (),
    ) -> FittedModel:
        """Trains a model.

        Args:
            model: what `build` returned. A later fit, say on more data, needs a new one.
            train: data to train on.
            monitored: data on which the metrics are recorded during the training, if any.
            epochs: number of passes over `train`.
            callbacks: Keras callbacks, say for early stopping. A cluster accepts none.

        Raises:
            UserError: the loss is NaN or infinite, or the runner accepts no callbacks.
        """
