"""Where a model is trained: in this process, or elsewhere by another `Runner`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import tensorflow as tf

from twml_ops import models
from twml_ops.checkpoint import Stateful, TrainingInterrupted, deferred_interrupt
from twml_ops.data import InputPosition, Source
from twml_ops.training.callbacks import (
    MEAN_LOSS,
    HistoryCallback,
    ProgressCallback,
    WeightAveraging,
)
from twml_ops.training.checkpoints import RunCheckpoints
from twml_ops.training.config import RunConfig
from twml_ops.training.labels import joined, joined_outputs, summed_loss, weighted
from twml_ops.training.model import make_optimizer, read_ahead, storage_scope
from twml_ops.training.reporter import Reporter
from twml_ops.training.results import FittedModel, History
from twml_ops.training.sources import LARGE_BATCH_SIZE
from twml_ops.training.trained_run import restore_slots
from twml_ops.training.tree_share import TreeShareCallback, shares_of


class Monitored(NamedTuple):
    """Data on which the metrics are recorded during the training.

    Attributes:
        source: the data.
        name: "validation" if choices are made on these data, otherwise "evaluation".
    """

    source: Source
    name: Literal["validation", "evaluation"]


class Computed(NamedTuple):
    """What the layers in front of the weights make of the data, computed once for all epochs.

    Attributes:
        train: replaces the row keys of batches of the training data.
        monitored: batches of the monitored data; None: there are none.
    """

    train: Callable[[tf.data.Dataset], tf.data.Dataset]
    monitored: tf.data.Dataset | None


class Runner(Protocol):
    """Builds and fits the model of a run: `build`, then `fit`."""

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
            callbacks: Keras callbacks, say for early stopping. In a cluster they are called at the
                beginning, at the end, and at the ends of epochs.

        Raises:
            UserError: the loss is NaN or infinite.
        """


class MakeRunner(Protocol):
    """Makes the runner of one training of a run."""

    def __call__(
        self,
        config: RunConfig,
        log_dir: Path | None,
        reporter: Reporter,
        checkpoints: RunCheckpoints | None = None,
        *,
        member: int = 0,
        final: bool = False,
    ) -> Runner:
        """Makes a runner.

        Args:
            config: configuration of the training, with a learning rate.
            log_dir: folder of the TensorBoard logs; None: there are none.
            reporter: is told what happens.
            checkpoints: the checkpoints of the run; None: none are written.
            member: number of the member of an ensemble, from 0.
            final: whether the model is one of the run, and not only compared.
        """


def local_runner(
    config: RunConfig,
    log_dir: Path | None,
    reporter: Reporter,
    checkpoints: RunCheckpoints | None = None,
    *,
    member: int = 0,
    final: bool = False,
) -> Runner:
    """Makes a `LocalRunner`. See `MakeRunner`."""
    del final
    return LocalRunner(config, log_dir, reporter, checkpoints, member)


STEPS_PER_EXECUTION = 16  # amortizes the cost of a call of Keras' train function


def below(logs: Path | None, name: str) -> Path | None:
    """A folder in the folder of the logs; None if there are no logs."""
    return None if logs is None else logs / name


class LocalRunner:
    """Trains in this process. See `Runner`.

    Args:
        config: configuration of the run, with a learning rate.
        log_dir: folder of the TensorBoard logs; None: there are none.
        reporter: is told what happens.
        checkpoints: the checkpoints of the run; None: none are written.
        member: number of the member of an ensemble, from 0.
    """

    _looks_up_many = True  # computed rows of several batches in one call

    def __init__(
        self,
        config: RunConfig,
        log_dir: Path | None,
        reporter: Reporter,
        checkpoints: RunCheckpoints | None = None,
        member: int = 0,
    ) -> None:
        self._config, self._log_dir, self._reporter = config, log_dir, reporter
        self._checkpoints = checkpoints
        self._fit_phase = f"member {member}" if member else "fit"

    def build(self, make_model: Callable[[], tf.keras.Model]) -> tf.keras.Model:
        """The model that `make_model` returns."""
        with storage_scope(self._config):
            return make_model()

    def fit(
        self,
        model: tf.keras.Model,
        train: Source,
        monitored: Monitored | None,
        *,
        epochs: int,
        callbacks: Sequence[tf.keras.callbacks.Callback] = (),
    ) -> FittedModel:
        """Trains a model; see `Runner.fit`.

        The learning rate is constant, and each epoch ends with averaged weights, unless the rows of
        tables are in files: the averages would take the memory of whole tables.
        """
        trained = joined_outputs(model, train.schema.labels)
        rest, computed = self._computed(trained, train, monitored)
        history = self._compile(rest, train, monitored)
        self._train(rest, model, train, monitored, epochs, callbacks, history, computed=computed)
        return self._fitted(model, rest, history)

    def _computed(
        self, model: tf.keras.Model, train: Source, monitored: Monitored | None
    ) -> tuple[tf.keras.Model, Computed | None]:
        """The model to train, and what is computed before; the model and None if nothing is.

        Published checkpoints, slots of an earlier run and tables in files need the whole model.
        """
        config = self._config
        published = self._checkpoints is not None and self._checkpoints.publishes
        front = None
        if not published and config.from_run is None and config.storage is None:
            front = models.divided(model)
        found = front and front.of(train, True, LARGE_BATCH_SIZE)
        look_up = found and models.keyed_batches(found)
        if front is None or not look_up:
            return model, None
        batches = None
        if monitored is not None:
            others = front.of(monitored.source, False, LARGE_BATCH_SIZE)
            if others is None:
                return model, None
            batches = models.batches_of(others)
        return front.rest, Computed(look_up, batches)

    def _compile(
        self, model: tf.keras.Model, train: Source, monitored: Monitored | None
    ) -> History:
        """Prepares a model for `_train`; returns the record of its training."""
        config, labels = self._config, train.schema.labels
        assert config.learning_rate is not None
        several = {"multi_label": True, "num_labels": len(labels)} if len(labels) > 1 else {}
        metrics = [tf.keras.metrics.AUC(name="auc", **several)]
        is_weighted = train.schema.weight is not None or config.positive_weight != 1
        if is_weighted or several:
            metrics.append(tf.keras.metrics.BinaryCrossentropy(name=MEAN_LOSS))
        model.compile(
            make_optimizer(config.optimizer, config.learning_rate),
            summed_loss(labels),
            **{"weighted_metrics" if is_weighted else "metrics": metrics},
            steps_per_execution=STEPS_PER_EXECUTION,
            jit_compile=False,
        )
        # Keras would create the slots in the first trace of a step, which TensorFlow then repeats.
        model.optimizer.build(model.trainable_variables)
        restore_slots(config, model)
        return History(monitored=monitored.name if monitored else "evaluation")

    def _train(
        self,
        model: tf.keras.Model,
        served: tf.keras.Model,
        train: Source,
        monitored: Monitored | None,
        epochs: int,
        callbacks: Sequence[tf.keras.callbacks.Callback],
        history: History,
        initial_epoch: int = 0,
        computed: Computed | None = None,
        first: Sequence[tf.keras.callbacks.Callback] = (),
    ) -> None:
        """Trains a compiled model up to a number of epochs, unless a callback ends it before.

        `served` is the model before its outputs were joined. The callbacks `first` are called
        before the weights are averaged.
        """
        config, size = self._config, self._examples(train)
        labels = train.schema.labels
        layout = models.layout_of(served)
        steps = -(-size // config.fixed_batch_size)
        validation_data = None
        if monitored is not None:
            monitored.source.num_examples()  # so that its dataset has a length: Keras 2 needs it
            validation_data = computed and computed.monitored
            if validation_data is None:
                validation_data = monitored.source.dataset(LARGE_BATCH_SIZE, layout=layout)
            validation_data = joined(validation_data, labels)
            if monitored.name == "validation":
                validation_data = weighted(validation_data, config.positive_weight)

        def batches(**at: Any) -> tf.data.Dataset:
            if computed:
                dataset = self._computed_batches(train, computed, **at)
            else:
                dataset = self._batches(train, layout, **at)
            dataset = weighted(joined(dataset, labels), config.positive_weight)
            return read_ahead(dataset, model)

        logs = []
        if self._log_dir is not None:
            directory = str(self._log_dir)
            logs = [tf.keras.callbacks.TensorBoard(directory, write_graph=False, profile_batch=0)]
        with (
            deferred_interrupt(
                self._checkpoints is not None and self._checkpoints.wanted
            ) as interrupt,
            ProgressCallback(self._reporter, history, size) as progress,
        ):
            averaging: list[tf.keras.callbacks.Callback] = []
            if config.storage is None:
                averaging.append(WeightAveraging(steps))
            if validation_data is not None and monitored and monitored.name == "validation":
                shares = shares_of(model, config)
                if shares is not None:
                    averaging.append(TreeShareCallback(shares, validation_data))
            recorder = HistoryCallback(history, size, config.fixed_batch_size, progress)
            every = [*averaging, recorder, *callbacks]
            checkpoint = self._checkpoints and self._checkpoints.callback(
                model,
                train.schema,
                served=served,
                examples=size,
                batch_size=config.fixed_batch_size,
                seed=config.seed,
                phase="choice" if monitored and monitored.name == "validation" else self._fit_phase,
                states={type(c).__name__: c for c in every if isinstance(c, Stateful)},
                interrupt=interrupt,
            )
            start = InputPosition(config.seed, initial_epoch)
            data = {"x": batches(position=start), "initial_epoch": initial_epoch}
            if checkpoint:
                if checkpoint.position.epoch < initial_epoch:
                    checkpoint.start_at(start)
                data = checkpoint.input(model, batches)
            try:
                model.fit(
                    **data,
                    validation_data=validation_data,
                    epochs=epochs,
                    callbacks=[*first, *averaging, recorder, progress, *logs, *callbacks]
                    + ([checkpoint] if checkpoint else []),
                    shuffle=False,  # the dataset is shuffled already
                    verbose=0,
                )
            except TrainingInterrupted:
                assert self._checkpoints is not None
                raise self._checkpoints.interrupted() from None
        if interrupt.requested:  # in the last step or after it
            assert self._checkpoints is not None
            self._checkpoints.interrupted_after_last_step = True

    def _examples(self, train: Source) -> int:
        """The number of examples of an epoch."""
        return train.num_examples()

    def _computed_batches(
        self, train: Source, computed: Computed, position: InputPosition, repeat: bool = False
    ) -> tf.data.Dataset:
        """The batches from a position on, with what was computed; many are looked up at once."""
        size = self._config.fixed_batch_size
        many = self._looks_up_many and not repeat  # a repeated epoch ends in a short batch
        at_once = max(1, LARGE_BATCH_SIZE // size) if many else 1
        keys = self._batches(train, "row_keys", position, repeat=repeat, batch_size=at_once * size)
        if at_once == 1:
            return computed.train(keys).prefetch(tf.data.AUTOTUNE)
        count = None if position.examples else -(-train.num_examples() // size)
        return models.in_batches(computed.train(keys), size, count)

    def _batches(
        self,
        train: Source,
        layout: Any,
        position: InputPosition,
        *,
        batch_size: int | None = None,
        **options: Any,
    ) -> tf.data.Dataset:
        """The batches of the training data from a position on."""
        return train.dataset(
            batch_size or self._config.fixed_batch_size,
            shuffle=True,
            seed=self._config.seed,
            layout=layout,
            position=position,
            **options,
        )

    @staticmethod
    def _fitted(model: tf.keras.Model, joint: tf.keras.Model, history: History) -> FittedModel:
        """The model, which was trained as `joint`."""
        if model is not joint:
            model.compile(joint.optimizer)  # so that the run can save its slots
        return FittedModel(model, history)
