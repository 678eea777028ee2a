"""The benchmark of the readers, on a few lines."""

import re

import pytest

from benchmarks import readers, readers_process
from tests.trained_runs import write_criteo

pytestmark = pytest.mark.one_tf


def test_each_pass_reads_all_examples(tmp_path):
    source = write_criteo(tmp_path / "a.tsv", 50)
    passes = readers.passes_of(source, 16, False, [])
    found = readers.measure(passes, rounds=2)
    assert [len(seconds) for seconds in found.values()] == [2] * 4
    assert sum(map(len, passes["blocks (parsed arrays)"]())) == 50
    assert sum(len(labels) for _, labels in passes['batches, layout "fields"']()) == 50
    assert sum(chunk.count_lines() for chunk in passes["decompressed text"]()) == 50


def test_the_table_has_medians():
    table = readers.table({"blocks": [(2.0, 1.0), (1.0, 1.0), (4.0, 1.0)]}, 100)
    assert re.search(r"\| blocks \| 50 \| 33 to 67 \| 100 \|", table)


def test_examples_of_vowpal_wabbit_have_all_fields():
    fields = ["1", "7", *[""] * 12, "ab", *[""] * 24, "cd"]
    assert readers_process._as_vw("\t".join(fields) + "\n") == "1 |i I1:7 |c C1=ab C26=cd\n"
