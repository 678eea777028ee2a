"""The entries of each feature in a batch, from the columns of the parsed examples."""

import numpy as np
import pyarrow as pa
import pytest

from twml_ops.analysis.feature_groups import feature_groups, sample_of_block, take_sample
from twml_ops.data import Schema, open_source
from twml_ops.data.category_ids import hash_tokens

SCHEMA = Schema((), ("a", "tags", "b"), 0, "label", bags=("tags",))


def write(path, rows=200):
    """Rows with a bag between two columns; one column is always missing in a third of them."""
    rng = np.random.default_rng(0)
    cells = []
    for row in range(rows):
        a = f"a{rng.integers(5)}" if row % 3 else ""
        tags = [f"t{i}" for i in rng.choice(6, rng.integers(0, 4), replace=False)]
        b = f"b{rng.integers(4)}" if rng.random() < 0.8 else ""
        cells.append((a, tags, b))
    lines = [
        "a,tags,b,label",
        *(f"{a},{'|'.join(t)},{b},{i % 2}" for i, (a, t, b) in enumerate(cells)),
    ]
    path.write_text("\n".join(lines) + "\n")
    return cells


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("layout", ["ragged", "fields"])
def test_the_entries_of_a_categorical_feature_are_the_cells_of_its_column(tmp_path, layout, seed):
    cells = write(tmp_path / "data.csv")
    source = open_source(f"csv:{tmp_path / 'data.csv'}", schema=SCHEMA)
    sample = take_sample(source, len(cells), layout, seed)
    found = {}
    for group in feature_groups(sample.features, SCHEMA, sample.category_columns):
        batch = sample.features[group.keys[0]]
        ids = np.asarray(getattr(batch, "flat_values", batch)).reshape(-1)
        for name, mask in group.masks.items():
            found[name] = np.sort(ids[mask][ids[mask] >= 0])
    columns = zip(*cells, strict=True)
    for name, column in zip(SCHEMA.categorical, columns, strict=True):
        texts = [t for cell in column for t in (cell if isinstance(cell, list) else [cell]) if t]
        np.testing.assert_array_equal(found[name], np.sort(hash_tokens(name, pa.array(texts))))


def test_a_sample_is_the_beginning_of_the_shuffled_data_set(tmp_path):
    write(tmp_path / "data.csv")
    source = open_source(f"csv:{tmp_path / 'data.csv'}", schema=SCHEMA)
    sample = take_sample(source, 64, "ragged", 3)
    features, labels = next(iter(source.dataset(64, shuffle=True, seed=3)))
    np.testing.assert_array_equal(sample.labels, labels[:, 0])
    assert sample.features["categorical_ids"].to_list() == features["categorical_ids"].to_list()


def test_categories_without_columns_are_refused(tmp_path):
    write(tmp_path / "data.csv")
    source = open_source(f"csv:{tmp_path / 'data.csv'}", schema=SCHEMA)
    features = sample_of_block(source.sample(9), SCHEMA).features
    for columns in (None, np.zeros(1, np.int64)):
        with pytest.raises(ValueError, match="category_columns must have the columns of"):
            feature_groups(features, SCHEMA, columns)
