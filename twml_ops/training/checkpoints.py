"""The checkpoints of a run that is trained in one process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from twml_ops._known_categories import KnownCategories
from twml_ops.checkpoint import (
    CheckpointCallback,
    CheckpointError,
    CheckpointManager,
    CheckpointReader,
    Interrupt,
    Stateful,
    TablePolicy,
)
from twml_ops.checkpoint.facts import FACTS
from twml_ops.data import Schema
from twml_ops.training.config import CheckpointOptions, RunConfig
from twml_ops.training.errors import RunInterrupted, UserError
from twml_ops.training.kept_results import MEMBERS, KeptTrials, MemberStore, TrialStore
from twml_ops.training.reporter import SILENT, Reporter
from twml_ops.training.results import EpochChoice, FittedModel
from twml_ops.training.run_publisher import RunPublisher


class RunCheckpoints:
    """The folder OUT.checkpoints of a run.

    Args:
        folder: the folder of the checkpoints.
        config: configuration of the run, with which it can be continued.
        options: when to write, and whether to continue.
        overwrite: whether checkpoints of an earlier run are removed.
        reporter: is told what happens.

    Attributes:
        choice: how the number of epochs was chosen, in this process or before; None: not yet.
        interrupted_after_last_step: whether a signal has asked for the end of the run when the
            training of a model was over. `stop_if_interrupted` obeys it.

    Raises:
        UserError: the folder has checkpoints, and the run is neither to continue nor to replace
            them; or it is in use; or versions are to be published of several models.
    """

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        options: CheckpointOptions,
        overwrite: bool,
        reporter: Reporter = SILENT,
    ) -> None:
        self._reporter = reporter
        self._manager = CheckpointManager(folder, keep=options.keep, tables=table_policy(config))
        self._config, self._options = config, options
        self._publisher: RunPublisher | None = None
        if options.publish:
            self._publisher = RunPublisher(options.publish, config, reporter)
        if self._publisher is not None:
            self._manager.on_written = self._publisher.publish
        self._members = MemberStore(folder / MEMBERS)
        self._trials = TrialStore(folder)
        self._schema: Schema | None = None
        if options.resume and (latest := self._manager.latest()):
            config.check_same(latest.manifest.values.get(FACTS, {}), latest.folder)
        chosen = self._saved("choice")
        self.choice = EpochChoice.from_json(chosen) if chosen else None
        self.interrupted_after_last_step = False
        kept = self._members.has_members or self._trials.has_trials
        if not options.resume and (kept or not self._manager.is_empty):
            if not overwrite:
                raise unfinished_run(folder)
            self.remove()
        if self._publisher is not None:
            self._publisher.open()

    @property
    def wanted(self) -> bool:
        """Whether checkpoints are to be written or read."""
        options = self._options
        return options.steps is not None or options.seconds is not None or options.resume

    @property
    def publishes(self) -> bool:
        """Whether checkpoints are published, which need the whole model."""
        return self._options.publish is not None

    def load_member(self, number: int) -> FittedModel | None:
        """A member of an ensemble that an earlier process has trained.

        Args:
            number: the number of the member, from 0.

        Returns:
            The member; None if it is not trained yet.

        Raises:
            UserError: its files are damaged, or of a run with another configuration.
        """
        return self._members.load(number, self._config) if self._options.resume else None

    def keep_member(self, number: int, fitted: FittedModel) -> None:
        """Keeps a member of an ensemble, from which a run that is continued does not start again.

        Args:
            number: the number of the member, from 0.
            fitted: the member, as it was trained.
        """
        if not self.wanted:
            return
        try:
            self._members.save(number, fitted, self._config)
        except OSError as e:
            self._reporter.failure(f"the member {number} cannot be kept: {e.strerror or e}")

    def load_trials(self) -> KeptTrials | None:
        """The trials of `--model auto` that an earlier process has done.

        Returns:
            The trials; None if there are none.

        Raises:
            UserError: their file is damaged or of another run.
        """
        return self._trials.load(self._config) if self._options.resume else None

    def keep_trials(self, kept: KeptTrials) -> None:
        """Keeps the trials of `--model auto`, which a run that is continued does not repeat.

        Args:
            kept: all trials so far.
        """
        if not self.wanted:
            return
        try:
            self._trials.save(self._config, kept)
        except OSError as e:
            self._reporter.failure(f"the trials cannot be kept: {e.strerror}")

    def callback(
        self,
        model: tf.keras.Model,
        schema: Schema,
        *,
        served: tf.keras.Model,
        examples: int,
        batch_size: int,
        seed: int,
        phase: str,
        states: dict[str, Stateful],
        interrupt: Interrupt,
        may_differ: Sequence[str] = (),
    ) -> CheckpointCallback | None:
        """The last callback of a training, and continues the training if that is asked for.

        Args:
            model: compiled model.
            schema: its features.
            served: the model that is published: `model`, or one with the same weights.
            examples: number of examples in an epoch.
            batch_size: number of examples in a batch.
            seed: the seed of the order of the examples.
            phase: "choice" of the number of epochs, "fit" for this number, or "member N" for the
                same of another member of an ensemble.
            states: other callbacks with a state, by name.
            interrupt: whether a signal has asked for the end.
            may_differ: see `CheckpointCallback`.

        Returns:
            The callback; None if no checkpoints are to be written or read.

        Raises:
            UserError: the checkpoint is damaged or of another run.
        """
        options, config = self._options, self._config
        if not self.wanted:
            return None
        if self._publisher is not None:
            self._publisher.follow(served, model, schema)
            self._schema = schema
        choice = self.choice and self.choice.to_json()
        facts = {**config.to_json(), "phase": phase, "choice": choice}
        callback = CheckpointCallback(
            self._manager,
            num_examples=examples,
            batch_size=batch_size,
            seed=seed,
            every_steps=options.steps,
            every_seconds=options.seconds or (None if options.steps else float("inf")),
            states=states,
            values=json.loads(json.dumps(facts)),
            interrupt=interrupt,
            on_error=lambda error: self._reporter.failure(str(error)),
            may_differ=may_differ,
        )
        if options.resume and self._saved("phase") == phase:
            try:
                checkpoint = callback.resume(model)
            except CheckpointError as e:
                raise UserError(str(e)) from e
            assert checkpoint is not None
            self._reporter.resumed(
                checkpoint.manifest.step, callback.position.epoch + 1, self._manager.folder
            )
        return callback

    def publish_with(self, known: KnownCategories | None) -> None:
        """Has published versions tell the categories of the training data."""
        if self._publisher is not None:
            self._publisher.known = known

    def publish_final(self, model: tf.keras.Model) -> None:
        """Publishes the model of the finished run, if its checkpoints are published.

        Args:
            model: the model.

        Raises:
            UserError: the version cannot be written.
        """
        if self._publisher is not None and self._schema is not None:
            self._publisher.publish_final(model, self._schema)

    def interrupted(self) -> RunInterrupted:
        """The error of a run that a signal has ended."""
        try:
            latest = self._manager.latest()
        except CheckpointError:  # its manifest cannot be read now
            return RunInterrupted("interrupted", can_continue=True)
        if latest is not None:
            when = f"interrupted after step {latest.manifest.step:,}"
        elif self._trials.has_trials or self._members.has_members:
            when = "interrupted; what has been trained is kept"
        else:
            return RunInterrupted("interrupted; no checkpoint could be written")
        return RunInterrupted(when, can_continue=True)

    def stop_if_interrupted(self) -> None:
        """Ends the run before it trains another model.

        Raises:
            RunInterrupted: a signal has asked for it after the last step of the model before.
        """
        if self.interrupted_after_last_step:
            raise self.interrupted()

    def close(self) -> None:
        """Waits for a checkpoint that is being written, and ends the use of the folders."""
        try:
            self._manager.close()
        except CheckpointError as e:
            self._reporter.failure(str(e))
        if self._publisher is not None:
            self._publisher.close()

    def remove(self) -> None:
        """Removes the checkpoints.

        Raises:
            UserError: another process uses the folder.
        """
        try:
            with self._manager.alone():  # before anything of another process is removed
                self._members.remove()
                self._trials.remove()
                self._manager.remove_all()
        except CheckpointError as e:
            raise UserError(str(e)) from e

    def _saved(self, name: str) -> Any:
        newest = self._newest()
        return newest.manifest.values.get(FACTS, {}).get(name) if newest else None

    def _newest(self) -> CheckpointReader | None:
        """The checkpoint that the run continues from; None: it begins at the beginning."""
        if not self._options.resume:
            return None
        try:
            return self._manager.newest_intact(warn=self._reporter.failure)
        except CheckpointError as e:
            raise UserError(f"{e}; use --overwrite to begin again") from e


def unfinished_run(folder: object) -> UserError:
    """The error of a run whose folder has the checkpoints of another one.

    Args:
        folder: the folder of the checkpoints.
    """
    return UserError(
        f"{folder}: has checkpoints of a run that has not finished: use --resume to "
        "continue it, or --overwrite to begin again"
    )


def table_policy(config: RunConfig) -> TablePolicy:
    """What checkpoints of a run have of its tables and their slots.

    Args:
        config: configuration of the run.

    Returns:
        The policy and the widths.
    """
    bits = {"optimizer/*": config.checkpoint_slot_bits, "*": config.checkpoint_bits}
    return TablePolicy(
        config.checkpoint_policy, {name: None if n == 32 else n for name, n in bits.items()}
    )
