"""The checkpoints of a run as versions of a served model: `twml-ops train --publish`."""

from __future__ import annotations

import contextlib
from pathlib import Path

import tensorflow as tf

from twml_ops._known_categories import KnownCategories
from twml_ops._publish import exclusive
from twml_ops.checkpoint import CheckpointError, CheckpointReader
from twml_ops.cli.errors import UserError
from twml_ops.cli.render.terminal import make_error_console
from twml_ops.cli.runs.class_balance import corrected
from twml_ops.cli.runs.config import AUTO, RunConfig
from twml_ops.cli.runs.folder import OUTPUT_NAME
from twml_ops.data import Schema
from twml_ops.export import ScorerPublisher

LOCK_FILE = ".training.lock"


class RunPublisher:
    """Publishes the checkpoints of a run, and its final model.

    Args:
        folder: the folder of the versions.
        config: configuration of the run.

    Raises:
        UserError: the run trains several models.
    """

    def __init__(self, folder: Path, config: RunConfig) -> None:
        if config.ensemble > 1 or config.model == AUTO:
            option = "--ensemble" if config.ensemble > 1 else "--model auto"
            raise UserError(f"--publish goes with the training of one model, not with {option}")
        self._folder, self._config = folder, config
        self._lock = contextlib.ExitStack()
        self._publisher: ScorerPublisher | None = None
        self.known: KnownCategories | None = None  # of the training data

    def open(self) -> None:
        """Claims the folder, to which no other run publishes until `close`.

        Raises:
            UserError: another run publishes to it, or it cannot be written.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            alone = self._lock.enter_context(exclusive(self._folder / LOCK_FILE, remove=True))
        except OSError as e:
            raise UserError(f"--publish: {self._folder}: cannot be written: {e.strerror}") from e
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
        assert self._publisher is not None
        try:
            self._publisher.publish(checkpoint)
        except (OSError, CheckpointError) as e:
            make_error_console().print(
                f"[yellow]warning[/]  {self._folder}: step {checkpoint.manifest.step:,} is not "
                f"published: {e}",
                soft_wrap=True,
            )

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

    def _made(
        self, model: tf.keras.Model, schema: Schema, trained: tf.keras.Model | None = None
    ) -> ScorerPublisher:
        # Raw columns are hashed as the readers hash them now, not as the readers of older runs did.
        old = schema.categorical and schema.hash_version == 1
        name = OUTPUT_NAME if len(schema.labels) == 1 else None  # labels have names
        return ScorerPublisher(
            *(model, self._folder),
            schema=None if old else schema,
            output_name=name,
            trained=trained,
            known=self.known,
        )
