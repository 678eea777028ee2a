"""Each part of `python -m benchmarks.run --quick` from end to end, with the installed peers."""

import importlib.util
import json
import re

import pytest

from benchmarks import run, sweeps
from benchmarks.contender import RULES, SLICES, TWML_OPS
from benchmarks.kernels import FORWARD

PARTS = ("kernels", "model", "features", "mirrored")


@pytest.fixture(scope="module")
def docs(tmp_path_factory):
    out = tmp_path_factory.mktemp("docs")
    run.main(list(PARTS), quick=True, threads=2, rounds=2, docs=out, render=False)
    return out


@pytest.fixture(scope="module")
def raw(docs):
    return json.loads((docs / "performance.json").read_text())


@pytest.mark.slow
def test_every_installed_contender_passes_the_check_and_is_timed(raw):
    kernels = raw["kernels"]
    reasons = [
        f"{n}: {why}" for missing in kernels["skipped"].values() for n, why in missing.items()
    ]
    # Keras 3's own Adagrad and Adam are wrong if ids repeat, so keras-rs fails the check.
    expected = r"not installed|has no|^keras-rs .* Keras (Adagrad|Adam \(dense\)): wrong update"
    assert [why for why in reasons if not re.search(expected, why)] == []
    assert not raw["model"]["wrong"]
    for task in (FORWARD, *RULES):
        assert all(
            t["median"] > 0 for times in kernels["times"][task].values() for t in times.values()
        )
        assert TWML_OPS in kernels["times"][task]
    assert all(SLICES in kernels["times"][rule] for rule in RULES)
    assert "TF sparse_dense_matmul" in kernels["times"][FORWARD]


@pytest.mark.slow
def test_a_peer_that_is_not_installed_is_named(raw):
    for label, package in (("torch", "torch"), ("FBGEMM", "fbgemm_gpu")):
        missing = raw["kernels"]["skipped"].get("sgd", {}).get(label)
        if importlib.util.find_spec(package) is None:
            assert missing == f"{package} is not installed"
        else:
            assert missing is None


@pytest.mark.slow
def test_the_page_has_machine_versions_and_every_table(docs, raw):
    page = (docs / "performance.md").read_text()
    assert f"keras {raw['kernels']['machine']['versions']['keras']}" in page
    assert raw["kernels"]["machine"]["date"] in page
    for title in (
        "### Forward",
        "### Step with LazyAdam",
        "| bandwidth floor |",
        "samples/s",
        "largest rank",
        "MB that a replica receives per step",
    ):
        assert title in page


@pytest.mark.slow
def test_the_traffic_of_replicas_does_not_depend_on_the_size_of_the_table(raw):
    assert not raw["mirrored"]["wrong"]
    assert len(raw["mirrored"]["sent"]) == 2
    assert len(set(raw["mirrored"]["sent"].values())) == 1


@pytest.mark.slow
def test_the_page_can_be_rendered_from_the_raw_results(docs):
    page = docs / "performance.md"
    before = page.read_text()
    stale = re.sub(r"(begin kernels[^>]*-->).*?(<!-- end)", r"\1\nold\n\2", before, flags=re.DOTALL)
    assert stale != before
    page.write_text(stale)
    run.main([], quick=True, threads=2, rounds=2, docs=docs, render=True)
    assert page.read_text() == before


def test_an_unknown_part_is_refused(tmp_path):
    with pytest.raises(Exception, match="no such part: kernel"):
        run.main(["kernel"], docs=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_sweep_point_times_twml_ops(tmp_path):
    point = sweeps.measure_point(run.QUICK, threads=2, rounds=1)
    assert TWML_OPS in point[FORWARD]
    assert {TWML_OPS, SLICES} <= set(point["sgd"])


@pytest.mark.slow
def test_sweeps_write_plots(tmp_path):
    run.main(["sweeps"], quick=True, threads=2, rounds=2, docs=tmp_path, render=False)
    axes = {*sweeps.AXES, "input_dim", "threads"}
    assert {p.stem for p in (tmp_path / "img").iterdir()} == axes
    page = (tmp_path / "performance.md").read_text()
    assert all(f"(img/{axis}.png)" in page for axis in axes)
