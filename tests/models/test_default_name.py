"""The model that `twml-ops train` uses if none is named."""

import pytest

from twml_ops import models
from twml_ops.data import Schema


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        (Schema(("a",), (), 0, "x"), "dcn"),
        (Schema((), ("c",), 0, "x"), "dcn"),
        (Schema((), ("c",), 1 << 20, "x"), "dcn"),
        (Schema((), (), 256, "x"), "dcn"),
        (Schema((), (), 257, "x"), "sparse_mlp"),
    ],
)
def test_columns_and_few_sparse_features_are_crossed(schema, name):
    assert models.default_name(schema) == name
    assert name in models.names()
