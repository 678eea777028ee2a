"""Publishes the checkpoints of a run as versions of a scorer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from twml_ops._known_categories import KnownCategories
from twml_ops._publish import check_is_here, exclusive
from twml_ops.checkpoint import CheckpointError, CheckpointReader
from twml_ops.data import Schema
from twml_ops.export import ScorerPublisher
from twml_ops.training.config import AUTO, RunConfig
from twml_ops.training.errors import UserError
from twml_ops.training.labels import corrected
from twml_ops.training.reporter import SILENT, Reporter
from twml_ops.training.run_folder import OUTPUT_NAME

LOCK_FILE = ".training.lock"


class RunPublisher:
    """Publishes the checkpoints of a run, and its final model.

    The process that trains a run does it, or the evaluator of a cluster.

    Args:
        folder: the folder of the versions.
        config: configuration of the run.
        reporter: is told what cannot be published.

    Raises:
        UserError: the run trains several models.
    """

    def __init__(self, folder: Path, config: RunConfig, reporter: Reporter = SILENT) -> None:
        if config.ensemble > 1 or config.model == AUTO:
            option = "--ensemble" if config.ensemble > 1 else "--model auto"
            raise UserError(f"--publish publishes the training of one model, not with {option}")
        self._folder, self._config, self._reporter = folder, config, reporter
        self._lock = contextlib.ExitStack()
        self._publisher: ScorerPublisher | None = None
        self.known: KnownCategories | None = None  # of the training data

    def open(self) -> None:
        """Claims the folder, to which no other run publishes until `close`.

        Raises:
            UserError: another run publishes to it, or it cannot be written.
        """
        try:
            check_is_here(self._folder)
            self._folder.mkdir(parents=True, exist_ok=True)
            alone = self._lock.enter_context(exclusive(self._folder / LOCK_FILE, remove=True))
        except OSError as e:
            what = f"{self._folder}: cannot be written: {e.strerror}" if e.strerror else str(e)
            raise UserError(f"--publish: {what}") from e
        if not alone:
            raise UserError(f"--publish: {self._folder}: another run publishes its versions here")

    def close(self) -> None:
        """Lets other runs publish to the folder."""
        self._lock.close()

    def follow(self, served: tf.keras.Model, model: tf.keras.Model, schema: Schema) -> None:
        """Publishes the checkpoints of a model from now on.

        Args:
            served: the model to publish, before its correction for sampled negatives.
            model: the model that is trained, with the same weights.
            schema: its features.
        """
        served = corrected(served, self._config)
        self._publisher = self._made(served, schema, trained=model)

    def publish(self, checkpoint: CheckpointReader) -> None:
        """Publishes a checkpoint. An error is a warning: the training goes on."""
        publisher = self._followed
        with self._errors_are_warnings(checkpoint.manifest.step):
            publisher.publish(checkpoint)

    def publish_weights(self, step: int) -> None:
        """Publishes the weights that the model has now. An error is a warning.

        Args:
            step: the step that they are of.
        """
        publisher = self._followed
        with self._errors_are_warnings(step):
            publisher.publish_model(step)

    def publish_final(self, model: tf.keras.Model, schema: Schema) -> None:
        """Publishes the model of the finished run.

        Args:
            model: the model.
            schema: its features.

        Raises:
            UserError: the version cannot be written.
        """
        try:
            self._made(model, schema).publish_model()
        except OSError as e:
            raise UserError(
                f"--publish: {self._folder}: the final model is not published: {e}; the run is "
                "finished, and `twml-ops export --format scorer` writes it"
            ) from e

    @property
    def _followed(self) -> ScorerPublisher:
        assert self._publisher is not None
        return self._publisher

    @contextlib.contextmanager
    def _errors_are_warnings(self, step: int) -> Iterator[None]:
        try:
            yield
        except (OSError, CheckpointError) as e:
            self._reporter.failure(f"{self._folder}: step {step:,} is not published: {e}")

    def _made(
        self, model: tf.keras.Model, schema: Schema, trained: tf.keras.Model | None = None
    ) -> ScorerPublisher:
        name = OUTPUT_NAME if len(schema.labels) == 1 else None  # labels have names
        return ScorerPublisher(
            *(model, self._folder),
            schema=schema,
            output_name=name,
            trained=trained,
            known=self.known,
        )
