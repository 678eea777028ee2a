"""scikit-learn's logistic regression on one-hot buckets and categories."""

from __future__ import annotations

from sklearn import linear_model

from benchmarks.quality.encodings import OneHot
from benchmarks.quality.examples import Examples
from benchmarks.quality.peer import Peer, Settings, Trained


class LogisticRegression(Peer):
    """L2-regularized logistic regression; numbers are 20 quantile buckets."""

    name = "scikit-learn LogisticRegression"
    seeded = False
    grid = tuple({"C": c} for c in (0.03, 0.1, 0.3, 1.0))

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
        del seed, stop_early
        encoding = OneHot(train)
        model = linear_model.LogisticRegression(C=settings["C"], max_iter=200, tol=1e-4)
        model.fit(encoding.transform(train), train.labels)
        return Trained(model.predict_proba(encoding.transform(scored))[:, 1])
