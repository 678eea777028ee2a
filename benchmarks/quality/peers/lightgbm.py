"""LightGBM on numbers, raw sparse features, and out-of-fold statistics of categories."""

from __future__ import annotations

from typing import Any

import lightgbm
import numpy as np
import scipy.sparse

from benchmarks.quality.encodings import TargetMeans
from benchmarks.quality.examples import Array, Examples
from benchmarks.quality.peer import PATIENCE, Peer, Settings, Trained

MAX_ROUNDS = 1500


class LightGBM(Peer):
    """Gradient-boosted trees."""

    name = "LightGBM"
    grid = tuple(
        {"num_leaves": leaves, "min_data_in_leaf": rows, "prior_weight": weight}
        for leaves in (15, 63)
        for rows, weight in ((20, 5.0), (200, 5.0), (200, 20.0))
    )

    def run(
        self,
        settings: Settings,
        train: Examples,
        scored: Examples,
        *,
        seed: int,
        stop_early: bool,
    ) -> Trained:
        """See `Peer`."""
        statistics = TargetMeans(train, settings["prior_weight"], seed)
        rows = _features(train, statistics.of_training_data())
        scored_rows = _features(scored, statistics.transform(scored))
        parameters = {
            "objective": "binary",
            "learning_rate": 0.04,
            "num_leaves": settings["num_leaves"],
            "min_data_in_leaf": settings["min_data_in_leaf"],
            "feature_fraction": 0.5,
            "bagging_fraction": 0.8,
            "bagging_freq": 1,
            "lambda_l2": 1.0,
            "seed": seed,
            "num_threads": self.threads,
            "verbosity": -1,
        }
        data = lightgbm.Dataset(rows, train.labels)
        if not stop_early:
            model = lightgbm.train(parameters, data, settings["rounds"])
            return Trained(np.asarray(model.predict(scored_rows)))
        model = lightgbm.train(
            parameters,
            data,
            MAX_ROUNDS,
            valid_sets=[data.create_valid(scored_rows, scored.labels)],
            callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
        )
        return Trained(np.asarray(model.predict(scored_rows)), model.best_iteration)


def _features(examples: Examples, statistics: Array) -> Any:
    numbers = np.hstack([examples.numbers, statistics])
    if not examples.sparse.shape[1]:
        return numbers
    return scipy.sparse.hstack([scipy.sparse.csr_matrix(numbers), examples.sparse], format="csr")
