"""Data distributed as in the training are read in silence; a feature that moved is named."""

import warnings

import numpy as np
import pytest

from twml_ops.data import DataWarning, Schema, open_source
from twml_ops.training.drift import SAMPLE_ROWS, STATISTICS_FILE, EvenSample, Statistics
from twml_ops.training.sources import checked_features, learn_features

SCHEMA = Schema(("number", "count", "rare"), ("shop", "session", "tags"), 0, "x", bags=("tags",))


def table(rows, seed):
    rng = np.random.default_rng(seed)
    tags = ["|".join(rng.choice(["a", "b", "c", "d"], n)) for n in rng.integers(0, 4, rows)]
    return {
        "number": [f"{x:.3g}" for x in rng.standard_cauchy(rows)],
        "count": [str(x) if x < 9 else "" for x in rng.geometric(0.4, rows)],
        "rare": [f"{x:.2f}" if x > 1 else "0" for x in rng.normal(size=rows)],
        "shop": [f"s{x}" if x < 3000 else "" for x in rng.zipf(1.3, rows)],
        "session": [f"{x:x}" for x in rng.integers(0, 2**62, rows)],  # each is new
        "tags": tags,
    }


@pytest.fixture
def source_of(tmp_path):
    def source(columns, name="x.csv"):
        lines = map(",".join, zip(*columns.values(), strict=True))
        text = "\n".join([",".join([*columns, "label"]), *(f"{line},1" for line in lines)])
        (tmp_path / name).write_text(text + "\n")
        return open_source(f"csv:{tmp_path / name}", schema=SCHEMA)

    return source


@pytest.fixture
def run(source_of, tmp_path):
    """The folder of a run that has seen 4,000 rows and was evaluated on others."""
    known, statistics = learn_features(source_of(table(4000, 0)))
    for block in source_of(table(1000, 1), "eval.csv").blocks():
        statistics.add_unknown(known, block, SCHEMA)
    folder = tmp_path / "run"
    folder.mkdir()
    known.save(folder)
    statistics.save(folder)
    return folder


def said_of(run, source):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with checked_features(run, source):
            for _ in source.dataset(512, layout="fields"):
                pass
    return [str(w.message) for w in caught if w.category is DataWarning]


@pytest.mark.parametrize("rows", [1, 20, 300, 3000])
def test_data_of_the_same_distribution_are_read_in_silence(run, source_of, rows):
    for seed in range(2, 8):
        assert said_of(run, source_of(table(rows, seed), "new.csv")) == []


MOVED = {
    "number": lambda cells: [f"{float(x) + 5:.3g}" for x in cells],
    "count": lambda cells: ["" if i % 2 else x for i, x in enumerate(cells)],
    "rare": lambda cells: ["0" for _ in cells],
    "tags": lambda cells: [x.replace("a", "d") for x in cells],
    "shop": lambda cells: [f"new{i}" if i % 2 else x for i, x in enumerate(cells)],
}


@pytest.mark.parametrize("name", MOVED)
def test_the_feature_that_has_moved_is_named_and_no_other(run, source_of, name):
    columns = table(1000, 2)
    columns[name] = MOVED[name](columns[name])
    (said,) = said_of(run, source_of(columns, "new.csv"))
    named = said.partition("training data: ")[2]
    assert named.startswith(f"{name} (")
    assert ";" not in named
    assert ("unknown categories, " in named) == (name == "shop")


def test_the_histograms_are_of_an_even_sample(source_of, run):
    rows = 3 * SAMPLE_ROWS + 7
    columns = {"number": [str(i) for i in range(rows)]}
    columns |= {n: ["1"] * rows for n in ("count", "rare", "shop", "session", "tags")}
    source = source_of(columns)
    sample = EvenSample(source.num_examples())
    for block in source.blocks():
        sample.add(block)
    numbers = sample.block().groups["continuous"].table[:, 0]
    np.testing.assert_array_equal(numbers, np.arange(0, rows, 4))
    assert (run / STATISTICS_FILE).stat().st_size < 1 << 15


def test_a_damaged_file_is_named_and_an_old_run_is_not_checked(run, source_of):
    file = run / STATISTICS_FILE
    file.write_bytes(file.read_bytes()[:99])
    with pytest.raises(ValueError, match=r"statistics\.npz: damaged"):
        Statistics.load(run)
    file.unlink()
    columns = table(500, 2)
    columns["number"] = MOVED["number"](columns["number"])
    assert Statistics.load(run) is None
    assert not [s for s in said_of(run, source_of(columns, "new.csv")) if "number" in s]
