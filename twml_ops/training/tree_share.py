"""The share of boosted trees in the logit of a model, chosen by the validation data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from twml_ops import models
from twml_ops.training.callbacks import MEAN_LOSS
from twml_ops.training.config import RunConfig
from twml_ops.training.results import TREE_SHARE

_DEFAULT = 0.5
_LARGER = (0.75, 1.0)

Array = npt.NDArray[np.float64]
Logits = Callable[[Any], Any]
Predict = Callable[..., Any]


class TreeShares:
    """Chooses how much the boosted trees of a model weigh in the mean of their logit and the net's.

    The share is 1/2 unless the mean of the losses of the validation examples with 3/4 or 1 is lower
    by more than half of the standard error of the difference: the same rule as for crosses. Where
    the net is as good as the trees the choice would follow chance; where it is far worse, half of
    it does harm. Smaller shares are not tried: one ensemble of trees takes part in the choice, and
    several, which are better, in the model.

    Args:
        logits: returns the logits of the net and of the trees side by side, [B, 2 L], of the
            features of a batch; see `models.averaged_logits`.
    """

    def __init__(self, logits: Logits) -> None:
        self._logits = logits

    def better(self, batches: Iterable[Any]) -> dict[str, float]:
        """What changes in the metrics of the validation data with the chosen share.

        Args:
            batches: validation data, (features, labels [B, L]) or with weights [B].

        Returns:
            Nothing if the share is 1/2; else the share as "tree_share", and "val_loss" and
            "val_auc" with it.
        """
        first, second, labels, weights = self._columns(batches)

        def losses(share: float) -> Array:
            z = models.weighted_mean(first, second, share)
            each: Array = (np.logaddexp(0.0, z) - labels * z).mean(1)
            return each

        total = weights.sum()
        base, chosen, lowest = losses(_DEFAULT), _DEFAULT, np.inf
        for share in _LARGER:
            gains = base - losses(share)
            gain = weights @ gains / total
            error = np.sqrt(weights**2 @ (gains - gain) ** 2) / total
            loss = weights @ base / total - gain
            if gain > 0.5 * error and loss < lowest:
                chosen, lowest = share, loss
        if chosen == _DEFAULT:
            return {}
        several = (
            {"multi_label": True, "num_labels": labels.shape[1]} if labels.shape[1] > 1 else {}
        )
        auc = tf.keras.metrics.AUC(**several)
        logits = models.weighted_mean(first, second, chosen)
        scores = np.exp(-np.logaddexp(0.0, -logits))  # without an overflow
        auc.update_state(labels, scores, weights)
        return {TREE_SHARE: chosen, "val_loss": float(lowest), "val_auc": float(auc.result())}

    def _columns(self, batches: Iterable[Any]) -> tuple[Array, Array, Array, Array]:
        """The logits [N, L] of the net and of the trees, labels [N, L] and weights [N]."""
        logits, labels, weights = [], [], []
        for features, y, *given in batches:
            logits.append(np.asarray(self._logits(features), np.float64))
            labels.append(np.asarray(y, np.float64).reshape(len(y), -1))
            weight = np.asarray(given[0], np.float64) if given else np.ones(len(y))
            weights.append(weight.reshape(-1))
        both = np.concatenate(logits)
        middle = both.shape[1] // 2
        first, second = both[:, :middle], both[:, middle:]
        return first, second, np.concatenate(labels), np.concatenate(weights)


def shares_of(
    model: tf.keras.Model, config: RunConfig, predict: Predict | None = None
) -> TreeShares | None:
    """The choice of the share of a model that has boosted trees.

    Args:
        model: the model as it is trained, in this process.
        config: configuration of its training.
        predict: calls another model of the same layers on the features of a batch, where the
            weights are elsewhere; None: they are in this process.

    Returns:
        The choice; None if there are no trees, if the user chose the share, if the model is the one
        of another run, which has a share, or if it is kept and may be published meanwhile.
    """
    if TREE_SHARE in config.model_options or config.from_run is not None or not config.refit:
        return None
    both = models.averaged_logits(model)
    if both is None:
        return None
    if predict is not None:
        return TreeShares(partial(predict, model=both))
    call = tf.function(lambda x: both(x, training=False), autograph=False, reduce_retracing=True)
    return TreeShares(call)


class TreeShareCallback(tf.keras.callbacks.Callback):
    """Gives the metrics of an epoch the chosen share, for the callbacks that follow.

    Args:
        shares: chooses it.
        batches: validation data as of `TreeShares.better`.
    """

    def __init__(self, shares: TreeShares, batches: Iterable[Any]) -> None:
        super().__init__()
        self._shares, self._batches = shares, batches

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Chooses the share with the weights of the epoch."""
        found = self._shares.better(self._batches)
        if "val_loss" in found and f"val_{MEAN_LOSS}" in logs:
            found[f"val_{MEAN_LOSS}"] = found.pop("val_loss")
        logs.update(found)
