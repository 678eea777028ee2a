"""The click log of the examples: its columns are read as what they are."""

import runpy
import warnings
from pathlib import Path

import numpy as np
import pytest

from twml_ops.data import ColumnUses, open_source

LOG = runpy.run_path(str(Path(__file__).resolve().parents[2] / "examples" / "click_log.py"))


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        LOG["main"]([f"{folder}/{name}.csv", "--seed", str(seed), "--rows", "3000"])
    return [folder / f"{name}.csv" for name in "abc"]


def test_a_seed_gives_one_file(logs):
    first, again, other = (log.read_bytes() for log in logs)
    assert first == again != other


def test_every_column_is_read_as_what_it_is_without_doubt(logs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source = open_source(str(logs[0]), uses=ColumnUses(labels=("clicked",)))
    kinds = "time categorical categorical categorical categorical continuous bag continuous label"
    assert [f.kind for f in source.findings.values()] == kinds.split()
    assert all(f.sure for f in source.findings.values())
    times = np.concatenate([block.columns["time"] for block in source.blocks()])
    assert len(times) == 3000
    assert (np.diff(times) >= 0).all()
