"""The warning of features that alone predict the label."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console

from twml_ops.cli.render.terminal import print_warning


def warnings_of(leaks: Mapping[str, float], data: str) -> list[str]:
    """A sentence for each feature.

    Args:
        leaks: area under the ROC curve by feature, as of `analysis.leaking_features`.
        data: name of the data set.
    """
    return [
        f"The feature {name} alone has an AUC of {area:.4f} on {data}. If its value is not known "
        "at the time of a prediction, remove it."
        for name, area in leaks.items()
    ]


def print_leaks(console: Console, leaks: Mapping[str, float], data: str) -> None:
    """Prints the warnings, if there are any.

    Args:
        console: where to print.
        leaks: area under the ROC curve by feature.
        data: name of the data set.
    """
    for text in warnings_of(leaks, data):
        print_warning(console, text)
