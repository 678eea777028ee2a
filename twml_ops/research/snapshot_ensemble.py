"""Ensembles from one training run: snapshots of the weights, combined to one model."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from twml_ops import models, placement
from twml_ops._keras import clone_model, updating_optimizers
from twml_ops.research.member_weights import greedy_weights, log_loss_weights

Schedule = Literal["cyclic", "constant"]
Combination = Literal["mean_probability", "mean_logit", "weighted", "greedy"]


class Diversity(NamedTuple):
    """How different the predictions of the members are.

    Attributes:
        deviation: the standard deviation of the members' probabilities of an example, the mean over
            the examples.
        correlation: the correlation of the errors (probability - label) of two members, the mean
            over all pairs.
    """

    deviation: float
    correlation: float


class SnapshotEnsemble(tf.keras.callbacks.Callback):
    """Takes snapshots of a model while it is trained, and combines them to one model.

    `fit` is divided into `num_snapshots` cycles of equally many steps, each of which ends with a
    snapshot. Two ways, which can be used together, make the snapshots differ:

    - `schedule="cyclic"`: the learning rate falls in each cycle along half a cosine to 0 and starts
      again (Huang et al. 2017, "Snapshot Ensembles: Train 1, Get M for Free"): in step t of a cycle
      of T steps it is (1 + cos(pi t / T)) / 2 times that of the optimizer. One pass over the data
      suffices, as the cycles are counted in steps.
    - `perturbation` > 0: after each snapshot but the last one, every trainable weight tensor W is
      moved by `perturbation` times its norm, away from the snapshots so far: in the direction of
      W - (mean of the earlier snapshots; for the first one, the initial weights). Rows of tables
      that the data have not reached have not moved and stay where they are.

    The optimizer keeps its slots. With a `CompositeOptimizer` all of its learning rates are
    scheduled. After the training the learning rates have their previous values, and the model has
    the weights of the last snapshot. Each snapshot is a copy of all weights in the memory of the
    host.

    Args:
        num_snapshots: number of cycles, at least 2.
        schedule: "cyclic" or "constant".
        perturbation: size of the move relative to the norm of each weight tensor, not negative.
        cycle_steps: steps of a cycle; None: all steps of `fit` divided by `num_snapshots`, which
            must be known to Keras (`steps_per_epoch`).

    Attributes:
        snapshots: the weights of each snapshot, as of `model.get_weights()`.

    Raises:
        ValueError: an argument is out of range; or, when the training begins, the learning rate is
            a schedule, the number of steps is unknown, or the model has a table in a file or one
            that is divided among replicas.
    """

    def __init__(
        self,
        num_snapshots: int = 5,
        schedule: Schedule = "cyclic",
        perturbation: float = 0.0,
        cycle_steps: int | None = None,
    ) -> None:
        super().__init__()
        if num_snapshots < 2:
            raise ValueError(f"num_snapshots must be at least 2, got {num_snapshots!r}")
        if schedule not in ("cyclic", "constant"):
            raise ValueError(f"schedule must be cyclic or constant, got {schedule!r}")
        if not 0 <= perturbation < math.inf:
            raise ValueError(f"perturbation must be finite and not negative, got {perturbation!r}")
        if cycle_steps is not None and cycle_steps < 1:
            raise ValueError(f"cycle_steps must be positive, got {cycle_steps!r}")
        self.num_snapshots = num_snapshots
        self.schedule = schedule
        self.perturbation = perturbation
        self.cycle_steps = cycle_steps
        self.snapshots: list[list[npt.NDArray[Any]]] = []
        self._step, self._last_batch = 0, -1

    def on_train_begin(self, logs: Any = None) -> None:
        """Begins the first cycle.

        Args:
            logs: not used.

        Raises:
            ValueError: see the class.
        """
        del logs
        self._steps = self.cycle_steps or self._steps_of_fit()
        for variable in self.model.trainable_variables:
            place = placement.placement_of(variable)
            if place.is_sharded or isinstance(place, placement.TieredPlacement):
                raise ValueError(
                    "SnapshotEnsemble needs whole tables in memory, got "
                    f"{getattr(variable, 'path', variable.name)!r} with placement='sharded' or "
                    "storage=Tiered(...)"
                )
        self._optimizers = updating_optimizers(self.model.optimizer)
        self._rates = [self._rate_of(o) for o in self._optimizers]
        self._mean = [np.asarray(v) for v in self._trainable()]
        self.snapshots, self._step = [], 0

    def _steps_of_fit(self) -> int:
        steps, epochs = self.params.get("steps"), self.params.get("epochs")
        if not steps or not epochs:
            raise ValueError(
                "SnapshotEnsemble needs the number of steps: pass cycle_steps, or steps_per_epoch "
                "to fit"
            )
        return math.ceil(steps * epochs / self.num_snapshots)

    @staticmethod
    def _rate_of(optimizer: Any) -> float:
        rate = getattr(optimizer, "_learning_rate", None)
        if isinstance(rate, tf.keras.optimizers.schedules.LearningRateSchedule):
            raise ValueError(
                f"SnapshotEnsemble sets the learning rate, which must be a number, got {rate!r}"
            )
        return float(tf.convert_to_tensor(optimizer.learning_rate))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the learning rate of the step.

        Args:
            batch: not used.
            logs: not used.
        """
        del batch, logs
        if self.schedule == "cyclic" and len(self.snapshots) < self.num_snapshots:
            progress = (self._step % self._steps) / self._steps
            self._scale_rates((1 + math.cos(math.pi * progress)) / 2)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Takes a snapshot at the end of a cycle.

        Steps that are executed together (`steps_per_execution`) have one learning rate, and cycles
        end after the last of them.

        Args:
            batch: number of the last step in its epoch, from 0.
            logs: not used.
        """
        del logs
        before = self._step
        self._step += batch - self._last_batch  # the steps that were executed together
        self._last_batch = batch
        if self._step // self._steps > before // self._steps:
            self._end_cycle()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Counts the steps of an epoch from 0.

        Args:
            epoch: not used.
            logs: not used.
        """
        del epoch, logs
        self._last_batch = -1

    def on_train_end(self, logs: Any = None) -> None:
        """Takes the last snapshot if its cycle is incomplete, and resets the learning rates.

        Args:
            logs: not used.
        """
        del logs
        if self._step % self._steps:
            self._end_cycle()
        self._scale_rates(1.0)

    def _end_cycle(self) -> None:
        if len(self.snapshots) >= self.num_snapshots:
            return
        self.snapshots.append(self.model.get_weights())
        if self.perturbation and len(self.snapshots) < self.num_snapshots:
            self._perturb()

    def _perturb(self) -> None:
        """Moves the weights away from the mean of the earlier snapshots."""
        done = len(self.snapshots)
        for i, variable in enumerate(self.model.trainable_variables):
            now = np.asarray(tf.convert_to_tensor(variable), np.float32)
            away = now - self._mean[i]
            length = float(np.linalg.norm(away))
            if length > 0:
                size = self.perturbation * float(np.linalg.norm(now))
                variable.assign(tf.cast(now + away * (size / length), variable.dtype))
            # The initial weights are no snapshot.
            self._mean[i] = now if done == 1 else self._mean[i] + (now - self._mean[i]) / done

    def _trainable(self) -> list[npt.NDArray[Any]]:
        return [
            np.asarray(tf.convert_to_tensor(v), np.float32) for v in self.model.trainable_variables
        ]

    def _scale_rates(self, factor: float) -> None:
        for optimizer, rate in zip(self._optimizers, self._rates, strict=True):
            optimizer.learning_rate = rate * factor

    def members(self) -> list[tf.keras.Model]:
        """The snapshots as models.

        Returns:
            Copies of the model, one for each snapshot, in order.

        Raises:
            ValueError: there are none.
        """
        if not self.snapshots:
            raise ValueError("there are no snapshots yet: call fit with this callback")
        made = []
        for weights in self.snapshots:
            member = clone_model(self.model)
            member.set_weights(weights)
            made.append(member)
        return made

    def ensemble(
        self, combination: Combination = "mean_probability", validation: Any = None
    ) -> tf.keras.Model:
        """One model of all snapshots, which is saved and exported as any other.

        Args:
            combination: "mean_probability"; "mean_logit"; "weighted": the mean probability with the
                weights that have the lowest log loss on the validation data; "greedy": the mean
                probability of the members that `greedy_weights` chooses by them.
            validation: batches (features, labels) for "weighted" and "greedy"; their labels are
                0 or 1.

        Returns:
            An uncompiled model; see `models.ensemble`. It is a member if no other has a weight.

        Raises:
            ValueError: there are no snapshots, the combination is unknown, or it needs validation
                data.
        """
        members = self.members()
        if combination in ("mean_probability", "mean_logit"):
            return models.ensemble(members, combination=combination)
        if combination not in ("weighted", "greedy"):
            raise ValueError(
                "combination must be mean_probability, mean_logit, weighted or greedy, got "
                f"{combination!r}"
            )
        if validation is None:
            raise ValueError(f"combination={combination!r} needs validation data")
        find = log_loss_weights if combination == "weighted" else greedy_weights
        weights = find(*_predictions(members, validation))
        # Expectation maximization comes near 0, but never reaches it.
        kept = [i for i, w in enumerate(weights) if w > 1e-4 * weights.max()]
        if len(kept) == 1:
            return members[kept[0]]
        chosen = weights[kept] / weights[kept].sum()
        return models.ensemble([members[i] for i in kept], weights=chosen.tolist())

    def diversity(self, data: Any) -> Diversity:
        """How different the predictions of the snapshots are.

        Args:
            data: batches (features, labels).

        Returns:
            Two measures.
        """
        p, y = _predictions(self.members(), data)
        pairs = np.corrcoef(p - y)[np.triu_indices(len(p), 1)]
        return Diversity(float(p.std(axis=0).mean()), float(pairs.mean()))


def _predictions(members: Any, data: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The predictions [members, R] and the labels [R]."""
    found: list[list[npt.NDArray[Any]]] = [[] for _ in members]
    labels = []
    for features, y, *_ in data:
        labels.append(np.asarray(y).reshape(-1))
        for member, parts in zip(members, found, strict=True):
            output = member(features, training=False)
            if isinstance(output, dict):
                raise ValueError("weights and diversity need a model of one label")
            parts.append(np.asarray(output).reshape(-1))
    return np.stack([np.concatenate(parts) for parts in found]), np.concatenate(labels)
