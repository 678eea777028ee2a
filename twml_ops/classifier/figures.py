"""The plots of the report as figures of Matplotlib."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from twml_ops.analysis.scoring import Scores
    from twml_ops.training.results import RunResult


class Plots:
    """The plots of a classifier; each method returns a `matplotlib.figure.Figure`.

    A notebook shows a figure once `matplotlib.pyplot` is imported.

    Args:
        result: returns the run.
        scores: returns labels and predictions of examples, None for the evaluation data of the run.
    """

    def __init__(
        self, result: Callable[[], RunResult], scores: Callable[[Any, Any], Scores]
    ) -> None:
        self._result, self._scores = result, scores

    def reliability(self, X: Any = None, y: Any = None) -> Figure:
        """The share of positives against the mean prediction, for each twentieth of the examples.

        Args:
            X: examples, with their labels unless `y` is given; None: the evaluation data of `fit`.
            y: their labels.

        Returns:
            The figure.

        Raises:
            ValueError: there are no evaluation data, since the model was read from a folder.
        """
        from twml_ops.report import plots

        labels, predictions, *_ = self._scores(X, y)
        curve = plots.reliability(labels, predictions)
        name = "1/20 of the examples, 95 % interval"
        return plots.figure(plots.calibration({name: curve}), 5.2, 3.9)

    def score_histogram(self, X: Any = None, y: Any = None) -> Figure:
        """The density of the predictions for positives and for negatives.

        Args:
            X: see `reliability`.
            y: see `reliability`.

        Returns:
            The figure.

        Raises:
            ValueError: see `reliability`.
        """
        from twml_ops.report import plots

        labels, predictions, *_ = self._scores(X, y)
        return plots.figure(plots.score_histogram(labels, predictions), 5.2, 3.9)

    def learning_curve(self) -> Figure:
        """The loss during the training: of that which early stopping ended, if there was one.

        Returns:
            The figure.

        Raises:
            ValueError: the model was read from a folder.
        """
        from twml_ops.report import plots
        from twml_ops.report.result_tables import base_rate_loss

        result = self._result()
        history = result.epoch_choice.history if result.epoch_choice else result.history
        return plots.figure(plots.learning_curve(history, base_rate_loss(result.label_metrics)))

    def feature_bars(self, top: int = 25) -> Figure:
        """The permutation importance of the most important features.

        Args:
            top: how many.

        Returns:
            The figure.

        Raises:
            ValueError: the model was read from a folder.
        """
        from twml_ops.report import plots

        found = self._result().importances[:top]
        bars = plots.feature_bars([f.name for f in found], [f.importance for f in found])
        return plots.figure(bars, 6.4, 0.9 + 0.25 * len(found))
