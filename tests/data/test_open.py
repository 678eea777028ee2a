"""SOURCE strings."""

import pytest

from twml_ops.data import DataError, Schema, open_source


@pytest.mark.parametrize(
    "source", ["", "criteo2:x", "CRITEO:x", "data.tsv", "a\nb", "csv:x", ":x", "[1:2]"]
)
def test_an_unknown_scheme_lists_those_there_are(source):
    with pytest.raises(DataError, match=r"unknown source .*flights, criteo:PATH, libsvm:PATH"):
        open_source(source)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("criteo", "expected `criteo:` followed by a path"),
        ("criteo:", "unknown source"),
        ("libsvm?dim=3", "expected `libsvm:` followed by a path"),
        ("libsvm:x?dim=0", "dim must be at least 1"),
        ("criteo:x?dim=3", "takes no dim"),
        ("flights:x", "takes no path"),
    ],
)
def test_a_malformed_source_says_what_is_wrong(source, message):
    with pytest.raises(DataError, match=message):
        open_source(source)


def test_a_range_and_a_dim_go_together_and_paths_may_look_odd(text_file):
    path = text_file("1 1:1\n0 2:1\n1 3:1\n", "a[1]?b [2:x].libsvm")
    assert open_source(f"libsvm:{path}").num_examples() == 3
    part = open_source(f"libsvm:{path}[1:]?dim=9")
    assert part.num_examples() == 2
    assert part.schema.sparse_dim == 9
    assert part.name == f"libsvm:{path}[1:]"


def test_other_features_than_the_training_data_are_an_error(text_file, criteo_file, criteo_row):
    schema = open_source(f"criteo:{criteo_file([criteo_row()])}").schema
    libsvm = f"libsvm:{text_file('1 1:1')}"
    with pytest.raises(DataError, match="lacks continuous features of the training data: I1, I10"):
        open_source(libsvm, like=schema)
    with pytest.raises(DataError, match="adds continuous features of the training data"):
        open_source(f"criteo:{criteo_file([criteo_row()])}", like=Schema((), (), 3, "x"))
