"""Runs know the categories that they have seen: new ones are counted, and named if all are new."""

import warnings

import numpy as np
import pytest

from twml_ops._known_categories import CAPACITY, CATEGORIES_FILE, KnownCategories
from twml_ops.data import DataWarning, Schema, open_source
from twml_ops.training.sources import checked_features, learn_categories

SCHEMA = Schema((), ("c", "t"), 0, "x", bags=("t",))


@pytest.fixture
def source_of(tmp_path):
    def source(cells, name="x.csv"):
        rows = "".join(f"{i % 2},{c},{c}|{c}\n" for i, c in enumerate(cells))
        (tmp_path / name).write_text("label,c,t\n" + rows)
        return open_source(f"csv:{tmp_path / name}", schema=SCHEMA)

    return source


def warnings_of(function):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    return [str(w.message) for w in caught if w.category is DataWarning]


@pytest.mark.parametrize("layout", ["ragged", "fields"])
@pytest.mark.parametrize(
    ("cells", "named"),
    [
        (["a", "b"] * 20, False),
        (["a"] * 8 + ["new"] * 32, False),  # data has new categories, of course
        (["a"] + ["new", ""] * 20, True),
        ([f"item-{i}" for i in range(10)], True),
        (["new"] * 4, False),  # too few to say so
        ([""] * 50, False),
    ],
)
def test_a_field_whose_categories_are_nearly_all_unknown_is_named(
    cells, named, layout, source_of, tmp_path
):
    learn_categories(source_of(["a", "b", "c"] * 4)).save(tmp_path)
    data = source_of(cells, "new.csv")

    def read():
        with checked_features(tmp_path, data):
            for _ in data.dataset(7, layout=layout):
                pass

    said = warnings_of(read)
    assert [" of the categories of c " in text for text in said[:1]] == [True] * named
    assert len(said) == 2 * named  # the bag as well


def test_runs_of_earlier_versions_are_not_checked(source_of, tmp_path):
    with checked_features(tmp_path, source_of(["a"] * 20)):
        pass


def test_a_run_that_continues_another_one_knows_its_categories_too(source_of):
    first = learn_categories(source_of(["a", "b"] * 20))
    assert warnings_of(lambda: learn_categories(source_of(["b", "c"] * 20), first)) == []
    assert first.count("c", learn_categories(source_of(["a", "b", "c"]))._ids["c"]) == (3, 0)
    (*_, said) = warnings_of(lambda: learn_categories(source_of(["d"] * 20), first))
    assert "100% of the categories of t were not in the training data" in said


def test_a_sample_of_many_categories_is_bounded_and_estimates_the_share(tmp_path):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 2**62, 40 * CAPACITY)
    known_ids, others = np.split(ids, 2)
    sample = KnownCategories(["c", "empty"])
    for part in np.split(known_ids, 20):
        sample.add("c", np.append(part, -1))
    assert CAPACITY / 3 < len(sample._ids["c"]) <= CAPACITY
    sample.save(tmp_path)
    assert (tmp_path / CATEGORIES_FILE).stat().st_size < 1 << 18
    for made in (sample, KnownCategories.load(tmp_path)):
        assert made.fields == ("c", "empty")
        assert made.count("c", known_ids).unknown == 0
        examined, unknown = made.count("c", np.concatenate([known_ids, others, [-1] * 99]))
        assert abs(unknown / examined - 0.5) < 0.05
        assert made.count("c", others).suspicious
        assert made.count("empty", np.array([-1, -1])) == (0, 0)


@pytest.mark.parametrize("damage", [lambda b: b[:50], lambda b: b"", lambda b: b"PK" + b[9:]])
def test_a_damaged_file_is_named(damage, tmp_path):
    KnownCategories(["c"]).save(tmp_path)
    file = tmp_path / CATEGORIES_FILE
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=r"categories\.npz: damaged"):
        KnownCategories.load(tmp_path)
