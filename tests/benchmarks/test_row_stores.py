"""The benchmark of stores of rows, with tiny sizes."""

import shutil

import pytest

from benchmarks import row_stores

KEYS = {"rows_per_second", "read_amplification", "write_amplification", "cpu_seconds_per_million"}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_every_store_is_measured_in_both_modes(tmp_path):
    found = row_stores.measure(tmp_path, rows=3000, row_bytes=100, seconds=0.05, rounds=1)
    assert found["reads_per_second"] > 0
    modes = [(each["store"], each["direct"]) for each in found["stores"]]
    stores = {store for store, _ in modes}
    assert {"segments", "blocks"} <= stores <= set(row_stores.NAMES)
    assert sorted(modes) == sorted((s, d) for s in stores for d in (True, False))
    for each in found["stores"]:
        assert each.keys() >= KEYS
        assert each["rows_per_second"] > 0
    text = row_stores.table(found)
    assert text.startswith("3,000 rows of 100 bytes. ")
    assert len(text.splitlines()) == 4 + len(modes) + 2
