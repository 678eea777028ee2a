"""The benchmarks of scoring from files run, and write their tables."""

import json
import shutil

import pytest

from benchmarks import row_formats, scoring_from_files, tables

SIZES = {"rows": 4096, "units": 8, "candidates": 3, "row_length": 10, "skew": 1.05}
SIZES |= {"callers": 2, "depth": 8, "limit": False}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("needs a compiler")
    names = ("O_DIRECT", "O_DIRECT, int4", "the same, a third for sums")
    chosen = [s for s in scoring_from_files.SETTINGS if s[0] in names]
    folder = tmp_path_factory.mktemp("files")
    try:
        return scoring_from_files.measure(folder, SIZES, chosen, seconds=0.1, warm=0.1, rounds=1)
    except RuntimeError as e:
        if "device_reads" not in str(e):
            raise
        pytest.skip(f"the file system has no O_DIRECT, or the kernel no io_uring: {e}")


@pytest.mark.slow
def test_every_setting_has_a_throughput_and_latencies(measured):
    assert len(measured) == 3
    for r in measured:
        assert r["requests_per_second"] > 0
        assert 0 < r["p50"] <= r["p99"]
        assert 0 <= r["hit_rate"] <= 1
    assert measured[-1]["sum_hit_rate"] is not None
    assert measured[0]["table_bytes"] > 2 * measured[1]["table_bytes"]


@pytest.mark.slow
def test_results_are_a_table(measured, tmp_path):
    described = scoring_from_files.machine.describe("python -m benchmarks.x", packages=("numpy",))
    result = json.loads(json.dumps({"machine": described, "sizes": SIZES, "results": measured}))
    text = scoring_from_files.table(result)
    assert text.count("\n| ") == 5  # with the header and its line
    page = tmp_path / "page.md"
    tables.insert(page, "files", text, "benchmarks/scoring_from_files.py")
    assert "| O_DIRECT, int4 |" in page.read_text()


def test_the_log_loss_of_formats_is_a_table():
    assert row_formats.log_loss([0.5, 0.5], [0, 1]) == pytest.approx(0.6931, abs=1e-4)
    one = {"model": "m", "bytes": 5e6, "log_loss": 0.5, "increase": 1e-5, "mean_error": 1e-6}
    one |= {"largest_error": 1e-5, "examples": 20}
    results = [one | {"format": form} for form in ("float32", "int4")]
    text = row_formats.table({"data": "criteo", "results": results})
    assert "| `m` | int4 | 5.0 MB | 0.50000 | +1.0e-05 |" in text
