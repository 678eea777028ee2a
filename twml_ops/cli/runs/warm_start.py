"""`twml-ops train --from`: the training of a finished run goes on with other data."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from twml_ops import _keras, models
from twml_ops.cli.errors import UserError
from twml_ops.cli.runs.config import RunConfig
from twml_ops.cli.runs.sources import LARGE_BATCH_SIZE, Holdout
from twml_ops.cli.runs.trained_run import TrainedRun
from twml_ops.data import Schema, Source


class WarmStart:
    """The model of a finished run as the start of another one.

    Ids, buckets and rows of categories are taken from the earlier run, and so are their weights.
    Categories that are frequent in the new data and have no row get one (`with_new_categories`).
    Statistics that layers collect in training, such as the maxima of `MaxNorm`, go on. The
    optimizer has the slots of the earlier run if that has saved them (`saved_slots`), and starts
    anew if not.

    Args:
        config: configuration of the new run, with `from_run`.

    Raises:
        UserError: `from_run` is no finished run, or one whose model corrects its predictions; or
            the new run is to be trained in a cluster.
    """

    def __init__(self, config: RunConfig) -> None:
        assert config.from_run is not None
        self._folder, self._seed = Path(config.from_run), config.seed
        self._new_categories = config.new_categories
        run = TrainedRun(self._folder)
        wrong = None
        if run.facts.get("negative_rate", 1.0) != 1:
            wrong = "its model ends in a correction for --negative-rate"
        elif run.calibration is not None:
            wrong = "it is calibrated: use the run that was calibrated"
        elif config.cluster is not None:
            wrong = "a cluster does not start from a run"
        elif config.ensemble > 1:
            wrong = "--ensemble trains new models"
        if wrong is not None:
            raise UserError(f"--from {self._folder}: cannot be continued, because {wrong}")
        self.schema: Schema = run.schema
        self.holdout: Holdout = run.holdout

    def make_model(self, source: Source) -> tf.keras.Model:
        """The model of the earlier run, read from its file, with rows for new categories.

        Args:
            source: training data.

        Raises:
            UserError: the file cannot be read.
        """
        tf.keras.backend.clear_session()
        tf.keras.utils.set_random_seed(self._seed)
        _keras.keep_random_state_in_variables()
        model = TrainedRun(self._folder).model
        layout = models.layout_of(model)
        if not self._new_categories or layout == "ragged":
            return model
        batches = source.dataset(LARGE_BATCH_SIZE, layout=layout)
        return models.with_new_categories(model, source.schema, batches).model
