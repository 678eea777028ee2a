"""The keys of examples: each has one, whatever the way in which it is read."""

import gzip

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from twml_ops.data import open_source
from twml_ops.data.row_keys import ROW_KEYS
from twml_ops.data.subset import Subset, random_rows

ROWS = 60


def write_parquet(folder):
    for part in range(3):
        table = {"number": np.arange(20.0) + 20 * part, "label": np.arange(20) % 2}
        parquet.write_table(pa.table(table), folder / f"{part}.parquet", row_group_size=7)
    return f"parquet:{folder}/*.parquet"


def write_csv(folder):
    for part in range(3):
        rows = "".join(f"{i}.0,{i % 2}\n" for i in range(20 * part, 20 * part + 20))
        (folder / f"{part}.csv.gz").write_bytes(gzip.compress(f"number,label\n{rows}".encode()))
    return f"csv:{folder}/*.csv.gz"


@pytest.fixture(params=[write_parquet, write_csv])
def path(request, tmp_path):
    return request.param(tmp_path)


def keys_of(*sources, shuffle=False):
    """The key of each example, by its number."""
    found = {}
    for source in sources:
        for features, _ in source.dataset(9, layout="keyed_fields", shuffle=shuffle, seed=3):
            numbers = features["continuous"].numpy()[:, 0].tolist()
            found.update(zip(numbers, features["row_keys"].numpy().tolist(), strict=True))
    return found


def test_each_example_has_a_key_of_its_own_in_each_pass_and_order(path):
    source = open_source(path)
    first = keys_of(source)
    assert len({*first.values()}) == len(first) == ROWS
    assert keys_of(source) == first  # from memory
    assert keys_of(source, shuffle=True) == first
    assert keys_of(open_source(path), shuffle=True) == first


def test_views_keep_the_keys(path):
    whole = keys_of(open_source(path))
    source = open_source(path)
    assert keys_of(*source.split(0.3)) == whole
    assert keys_of(*(open_source(path).shard(i, 2) for i in range(2)), shuffle=True) == whole
    part = keys_of(Subset(open_source(path), "half", random_rows(0.5, 1)))
    assert 0 < len(part) < ROWS
    assert part.items() <= whole.items()


def test_equal_examples_have_different_keys(tmp_path):
    table = pa.table({"number": np.ones(5), "label": np.ones(5)})
    parquet.write_table(table, tmp_path / "x.parquet")
    (block,) = open_source(f"parquet:{tmp_path}/x.parquet").blocks()
    assert len({*block.columns[ROW_KEYS].tolist()}) == 5
