"""Features that alone predict the label."""

import numpy as np
import pytest

from twml_ops.analysis import leaking_features
from twml_ops.data import Schema
from twml_ops.data.block import Block, Categories, Numbers

SCHEMA = Schema(("number", "noise"), ("code", "id", "city"), 0, "x")
ROWS = 600


def block(seed=0, rows=ROWS, number=lambda y, rng: rng.normal(size=len(y)), code=None):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, rows)
    numbers = np.stack([number(y, rng), rng.normal(size=rows)], axis=1).astype(np.float32)
    codes = y * 1000 + rng.integers(0, 3, rows) if code is None else code(y, rng)
    ids = np.stack([codes, np.arange(rows), rng.integers(0, 9, rows)], axis=1)
    return Block(
        y.astype(np.float32), {"continuous": Numbers(numbers), "categorical": Categories(ids)}
    )


def random_code(y, rng):
    return rng.integers(0, 5, len(y))


def test_a_category_that_determines_the_label_is_found_and_others_are_not():
    found = leaking_features([block()], SCHEMA)
    assert list(found) == ["code"]
    assert found["code"] > 0.999


@pytest.mark.parametrize(
    "number",
    [
        lambda y, rng: y + 0.1 * rng.random(len(y)),
        lambda y, rng: -y + 0.1 * rng.random(len(y)),
        lambda y, rng: np.where(y == 1, np.nan, rng.normal(size=len(y))),
        lambda y, rng: np.where(y == 0, np.nan, rng.normal(size=len(y))),
    ],
)
def test_a_number_is_found_in_both_directions_and_by_its_missing_values(number):
    assert list(leaking_features([block(number=number, code=random_code)], SCHEMA)) == ["number"]


def test_categories_that_occur_once_tell_nothing():
    found = leaking_features([block(code=random_code)], SCHEMA, threshold=0.0)
    assert found["id"] < 0.6
    assert set(found) == {*SCHEMA.continuous, *SCHEMA.fields}


def test_the_area_of_a_number_counts_pairs():
    b = block(rows=80, code=random_code)
    x, y = b.groups["continuous"].table[:, 0], b.labels > 0.5
    pairs = np.sign(x[y][:, None] - x[~y][None, :])
    area = (pairs + 1).mean() / 2
    found = leaking_features([b], SCHEMA, threshold=0.0)["number"]
    assert found == pytest.approx(max(area, 1 - area))


def test_blocks_are_joined_and_few_examples_show_nothing():
    assert list(leaking_features([block(0, 50), block(1, 50)], SCHEMA)) == ["code"]
    assert leaking_features([block(0, 20)], SCHEMA) == {}
    assert leaking_features([], SCHEMA) == {}
