"""What a silent training says: warnings of Python."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from twml_ops.data import DataWarning
from twml_ops.report.result_tables import leak_warnings
from twml_ops.training.reporter import Reporter


class Warner(Reporter):
    """Warns of what should be looked at, and says nothing else."""

    def warning(self, text: str) -> None:
        """Warns."""
        warnings.warn(text, DataWarning, stacklevel=2)

    def leaks(self, leaks: Mapping[str, float], data: str) -> None:
        """Warns of features that alone predict the label."""
        for text in leak_warnings(leaks, data):
            self.warning(text)
