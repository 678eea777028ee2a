"""The plots of the report, as self-contained SVG."""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from twml_ops.training.results import History

INK, MUTED, GRID = "#1b1f24", "#6b7280", "#e5e7eb"
BLUE, ORANGE, GREEN = "#2563eb", "#ea580c", "#059669"

_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "legend.frameon": False,
    "svg.hashsalt": "twml_ops",  # the same run draws the same bytes
}

Draw = Callable[[Axes], None]

_styled_thread = threading.RLock()


def svg(draw: Draw, width: float = 6.4, height: float = 3.6) -> str:
    """A plot as a `data:` URL. Width and height are in inches."""
    return _svg(lambda figure: draw(figure.add_subplot()), width, height)


def figure(draw: Draw, width: float = 6.4, height: float = 3.6) -> Figure:
    """A plot as a figure. Width and height are in inches."""
    with _style():
        made = Figure(figsize=(width, height), layout="constrained")
        draw(made.add_subplot())
    return made


@contextmanager
def _style() -> Iterator[None]:
    """Draws in the style of the report.

    Matplotlib keeps the style for the whole process. Two threads that changed it at the same time
    would draw with a part of it, and the later one would leave it behind.
    """
    with _styled_thread, mpl.rc_context(_STYLE):
        yield


def _svg(draw: Callable[[Figure], None], width: float, height: float) -> str:
    with _style():
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(out.getvalue()).decode()


def learning_curve(history: History, base_rate_loss: float) -> Draw:
    """Log loss during the training, and on the monitored data after each epoch.

    Args:
        history: record of the training.
        base_rate_loss: log loss of a constant prediction, drawn as a horizontal line; NaN: none.
    """

    def draw(ax: Axes) -> None:
        if history.train_loss:
            points = zip(*history.train_loss, strict=True)
            ax.plot(*points, color=BLUE, lw=1.6, label="training data, during the training")
        if history.monitored_loss:
            ax.plot(
                *zip(*history.monitored_loss, strict=True), color=ORANGE, lw=1.6, marker="o", ms=4,
                label=f"{history.monitored} data, after each epoch",
            )  # fmt: skip
        if np.isfinite(base_rate_loss):
            ax.axhline(base_rate_loss, color=MUTED, lw=1, ls=(0, (4, 3)), label="base rate alone")
        ax.set(xlabel="examples seen", ylabel="log loss", xlim=(0, None))
        ax.xaxis.set_major_formatter(mpl.ticker.EngFormatter(sep=""))
        ax.legend()

    return draw


class Reliability(NamedTuple):
    """A reliability curve: mean prediction and share of positives in bins of equal size.

    Attributes:
        predicted: mean prediction, [bins].
        observed: share of positives, [bins].
        low: lower ends of the 95 % intervals of `observed`, [bins].
        high: upper ends, [bins].
    """

    predicted: npt.NDArray[Any]
    observed: npt.NDArray[Any]
    low: npt.NDArray[Any]
    high: npt.NDArray[Any]


def reliability(
    labels: npt.NDArray[Any], predictions: npt.NDArray[Any], bins: int = 20
) -> Reliability:
    """Computes a reliability curve, with 95 % Wilson intervals of the shares of positives."""
    order = np.argsort(predictions, kind="stable")
    parts = [i for i in np.array_split(order, bins) if len(i)]
    predicted = np.array([predictions[i].mean() for i in parts])
    observed = np.array([labels[i].mean() for i in parts])
    return Reliability(predicted, observed, *wilson(observed, np.array([len(i) for i in parts])))


def calibration(curves: dict[str, Reliability]) -> Draw:
    """Share of positives against mean prediction. The last of the curves is emphasized."""

    def draw(ax: Axes) -> None:
        ends = [c.predicted.max(initial=0) for c in curves.values()]
        ends += [c.observed.max(initial=0) for c in curves.values()]
        top = 1.05 * max([1e-6, *ends])
        ax.plot([0, top], [0, top], color=MUTED, lw=1, ls=(0, (4, 3)), label="perfect")
        colors = [ORANGE, BLUE][-len(curves) :]
        for (label, curve), color in zip(curves.items(), colors, strict=True):
            gaps = [curve.observed - curve.low, curve.high - curve.observed]
            line = "o-" if len(curves) > 1 else "o"
            ax.errorbar(
                curve.predicted, curve.observed, yerr=np.maximum(gaps, 0),
                fmt=line, ms=4, lw=1.2, color=color, label=label,
            )  # fmt: skip
        ax.set(xlabel="mean prediction", ylabel="share of positives", xlim=(0, top), ylim=(0, None))
        ax.legend(loc="upper left")

    return draw


def wilson(share: npt.NDArray[Any], n: npt.NDArray[Any], z: float = 1.96) -> tuple[Any, Any]:
    """The Wilson score interval of a share observed in n trials (Wilson, 1927)."""
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    return middle - half, middle + half


def score_histogram(labels: npt.NDArray[Any], predictions: npt.NDArray[Any]) -> Draw:
    """Density of the predictions for positives and for negatives."""
    edges = np.linspace(0, max(1e-6, float(predictions.max(initial=0))), 51).tolist()

    def draw(ax: Axes) -> None:
        for value, color, name in ((0, BLUE, "negatives"), (1, ORANGE, "positives")):
            scores = predictions[labels == value]
            if len(scores):
                ax.hist(
                    scores, edges, density=True, histtype="stepfilled", alpha=0.45, color=color,
                    label=f"{name} ({len(scores):,})",
                )  # fmt: skip
        ax.set(xlabel="prediction", ylabel="density", xlim=(0, edges[-1]))
        ax.legend()

    return draw


def feature_bars(names: list[str], importances: list[float]) -> Draw:
    """One bar per feature, from the top."""

    def draw(ax: Axes) -> None:
        colors = [GREEN if w > 0 else MUTED for w in importances]
        ax.barh(range(len(names)), importances, color=colors, height=0.7)
        ax.set_yticks(range(len(names)), names, color=INK)
        ax.set_ylim(len(names) - 0.4, -0.6)
        ax.grid(axis="y", visible=False)
        ax.axvline(0, color=MUTED, lw=0.8)
        ax.set_xlabel("increase of the log loss when the feature is permuted")

    return draw


def bar_columns(names: list[str], columns: dict[str, list[float]], lines: list[float]) -> str:
    """One column of horizontal bars for each quantity, with shared names; a `data:` URL.

    Args:
        names: names of the bars, from the top.
        columns: title → one value for each name, NaN for no bar.
        lines: values marked by lines in the fourth column. Its axis ends at four times the last
            line at most, so that one long bar does not hide the others.
    """

    def draw(figure: Figure) -> None:
        axes = figure.subplots(1, len(columns), sharey=True)
        for i, (ax, (title, values)) in enumerate(
            zip(np.atleast_1d(axes), columns.items(), strict=True)
        ):
            bars = np.nan_to_num(values)
            color = (GREEN, BLUE, MUTED, ORANGE)[i % 4]
            ax.barh(range(len(names)), bars, color=color, height=0.7)
            ax.set_yticks(range(len(names)), names, color=INK)
            ax.set_ylim(len(names) - 0.4, -0.6)
            ax.tick_params(axis="y", length=0)
            ax.grid(axis="y", visible=False)
            ax.set_title(title, fontsize=9.5, color=MUTED)
            ax.locator_params(axis="x", nbins=4)
            if i == 3:
                ax.set_xlim(0, max(1.2 * lines[-1], min(max(bars), 4 * lines[-1])))
                for line in lines:
                    ax.axvline(line, color=INK, lw=0.9, ls=(0, (4, 3)))

    return _svg(draw, 10.4, 0.8 + 0.25 * len(names))


class HistogramPair(NamedTuple):
    """The histograms of one feature in two data sets.

    Attributes:
        title: title of the plot.
        names: names of the bins.
        before: shares of the examples, [bins].
        now: shares of the examples, [bins].
    """

    title: str
    names: list[str]
    before: npt.NDArray[Any]
    now: npt.NDArray[Any]


def histogram_grid(features: list[HistogramPair]) -> str:
    """Histograms of features in two data sets, three features per row; a `data:` URL."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots(-(-len(features) // 3), 3, squeeze=False).ravel()
        for ax, feature in zip(axes, features, strict=False):
            place = np.arange(len(feature.names))
            ax.bar(place - 0.2, feature.before, 0.4, color="#9ca3af")
            ax.bar(place + 0.2, feature.now, 0.4, color=BLUE)
            ax.set_xticks(place, feature.names, rotation=60, ha="right", fontsize=7)
            ax.grid(axis="x", visible=False)
            ax.set_title(feature.title, fontsize=9.5, color=INK, loc="left")
            ax.yaxis.set_major_formatter(mpl.ticker.PercentFormatter(1))
        for ax in axes[len(features) :]:
            ax.set_visible(False)

    return _svg(draw, 10.4, 2.7 * -(-len(features) // 3))
