"""Each part of `python -m benchmarks.run --quick` from end to end, with the peers there are."""

import importlib.util
import json
import re

import pytest

from benchmarks import run, sweeps
from benchmarks.contender import OURS, RULES, SLICES
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


def test_every_contender_that_is_installed_is_right_and_timed(raw):
    kernels = raw["kernels"]
    reasons = [
        f"{n}: {why}" for missing in kernels["skipped"].values() for n, why in missing.items()
    ]
    # Keras 3's own Adagrad and Adam are wrong where ids repeat: those of keras-rs are found out.
    expected = r"not installed|has no|^keras-rs .* Keras (Adagrad|Adam \(dense\)): wrong update"
    assert [why for why in reasons if not re.search(expected, why)] == []
    assert not raw["model"]["wrong"]
    for task in (FORWARD, *RULES):
        assert all(
            t["median"] > 0 for times in kernels["times"][task].values() for t in times.values()
        )
        assert OURS in kernels["times"][task]
    assert all(SLICES in kernels["times"][rule] for rule in RULES)
    assert "TF sparse_dense_matmul" in kernels["times"][FORWARD]


def test_a_peer_that_is_not_installed_is_named(raw):
    for label, package in (("torch", "torch"), ("FBGEMM", "fbgemm_gpu")):
        missing = raw["kernels"]["skipped"].get("sgd", {}).get(label)
        if importlib.util.find_spec(package) is None:
            assert missing == f"{package} is not installed"
        else:
            assert missing is None


def test_the_page_has_machine_versions_and_every_table(docs, raw):
    page = (docs / "performance.md").read_text()
    assert f"keras {raw['kernels']['machine']['versions']['keras']}" in page
    assert raw["kernels"]["machine"]["date"] in page
    for title in (
        "### Forward",
        "### Step with LazyAdam",
        "| floor |",
        "samples/s",
        "largest rank",
        "MB a replica receives in a step",
    ):
        assert title in page


def test_replicas_send_the_same_whatever_the_size_of_the_table(raw):
    assert not raw["mirrored"]["wrong"]
    assert len(raw["mirrored"]["sent"]) == 2
    assert len(set(raw["mirrored"]["sent"].values())) == 1


def test_the_page_follows_from_the_raw_results(docs):
    page = docs / "performance.md"
    before = page.read_text()
    stale = re.sub(r"(begin kernels[^>]*-->).*?(<!-- end)", r"\1\nold\n\2", before, flags=re.DOTALL)
    assert stale != before
    page.write_text(stale)
    run.main([], quick=True, threads=2, rounds=2, docs=docs, render=True)
    assert page.read_text() == before


def test_a_part_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(Exception, match="no such part: kernel"):
        run.main(["kernel"], docs=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_sweep_point_times_ours(tmp_path):
    point = sweeps.point(run.QUICK, threads=2, rounds=1)
    assert OURS in point[FORWARD]
    assert {OURS, SLICES} <= set(point["sgd"])


@pytest.mark.slow
def test_sweeps_make_pictures(tmp_path):
    run.main(["sweeps"], quick=True, threads=2, rounds=2, docs=tmp_path, render=False)
    axes = {*sweeps.AXES, "input_dim", "threads"}
    assert {p.stem for p in (tmp_path / "img").iterdir()} == axes
    page = (tmp_path / "performance.md").read_text()
    assert all(f"(img/{axis}.png)" in page for axis in axes)
