"""The planted data of the benchmark of quality."""

import numpy as np
import pytest

from benchmarks.quality import access_requests, film_ratings, mixed_orders, semantic_clusters
from benchmarks.quality.planted_files import write_files
from twml_ops.data import open_source

GENERATORS = {
    "access": lambda: access_requests.generate(rows=400),
    "films": lambda: film_ratings.generate(users=30, films=40, chosen=200),
    "mixed": lambda: mixed_orders.generate(rows=400),
    "clusters": lambda: semantic_clusters.generate(rows=400),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_the_data_are_the_same_every_time_and_open_as_categories(name, tmp_path):
    columns, labels = GENERATORS[name]()
    again, labels_again = GENERATORS[name]()
    np.testing.assert_array_equal(labels, labels_again)
    for column, values in columns.items():
        np.testing.assert_array_equal(values, again[column])
        assert len(values) == len(labels)
    paths = write_files(tmp_path, name, columns, labels, 0.25)
    train, test = (open_source(f"csv:{path}") for path in paths)
    assert train.schema.categorical == tuple(columns)
    assert train.num_examples() + test.num_examples() == len(labels)
    assert test.num_examples() == round(0.25 * len(labels))


def test_half_of_the_films_were_chosen_and_popular_ones_more_often():
    columns, labels = GENERATORS["films"]()
    assert labels.mean() == 0.5
    counts = [np.bincount(columns["film"][labels == label], minlength=40) for label in (0, 1)]
    assert counts[1].std() > counts[0].std()


@pytest.mark.parametrize("module", [mixed_orders, semantic_clusters])
def test_other_seeds_are_other_tasks_with_the_same_form(module):
    labels = [module.generate(seed, rows=2000)[1] for seed in (0, 1)]
    assert np.any(labels[0] != labels[1])
    assert all(0.2 < of_seed.mean() < 0.5 for of_seed in labels)
