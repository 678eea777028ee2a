"""Renamed functions and classes of `twml_ops.analysis` have deprecated aliases."""

import pytest

from twml_ops import analysis


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Entries", "FeatureGroup"),
        ("Feature", "FeatureSummary"),
        ("entries_of", "feature_groups"),
        ("sample_of", "take_sample"),
        ("sparse_ids_of", "frequent_sparse_ids"),
    ],
)
def test_an_old_name_warns_and_gives_the_renamed_object(old, new):
    with pytest.warns(DeprecationWarning, match=f"use twml_ops.analysis.{new}"):
        assert getattr(analysis, old) is getattr(analysis, new)
