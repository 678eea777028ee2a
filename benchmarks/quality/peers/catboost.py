"""CatBoost, with its own ordered statistics of categories."""

from __future__ import annotations

from typing import Any

import catboost
import numpy as np

from benchmarks.quality.examples import Examples
from benchmarks.quality.peer import PATIENCE, Peer, Settings, Trained

MAX_ROUNDS = 600


class CatBoost(Peer):
    """Gradient-boosted oblivious trees."""

    name = "CatBoost"
    grid = tuple({"depth": depth} for depth in (6, 8))

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
        model = catboost.CatBoostClassifier(
            iterations=MAX_ROUNDS if stop_early else settings["rounds"],
            depth=settings["depth"],
            learning_rate=0.1,
            random_seed=seed,
            thread_count=self.threads,
            allow_writing_files=False,
            verbose=False,
        )
        pool = _pool(scored)
        if stop_early:
            model.fit(_pool(train), eval_set=pool, early_stopping_rounds=PATIENCE)
        else:
            model.fit(_pool(train))
        predictions = model.predict_proba(pool)[:, 1]
        return Trained(predictions, model.get_best_iteration() + 1 if stop_early else None)


def _pool(examples: Examples) -> Any:
    numbers = examples.dense()
    categories = examples.categories.astype(bytes).astype(object)
    features = catboost.FeaturesData(
        num_feature_data=np.ascontiguousarray(numbers, np.float32) if numbers.shape[1] else None,
        cat_feature_data=categories if categories.shape[1] else None,
    )
    return catboost.Pool(features, examples.labels)
