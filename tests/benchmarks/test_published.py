"""The benchmark of published systems runs on tiny data, resumes, and writes its page."""

import json

import numpy as np
import pytest

from benchmarks.published import __main__ as published
from benchmarks.published import architecture, dhen, hashes, shampoo, snapshots, towers
from benchmarks.published.task import TRIAL, TUNING_SEED, Settings, make, open_task
from twml_ops import models
from twml_ops.research import architecture_search as search


@pytest.fixture
def task(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return open_task("mixed", 0, 300, tmp_path)


TINY = Settings(epochs=1, batch_size=64)


def test_the_three_parts_of_a_task_are_disjoint_and_the_test_rows_are_the_last(task):
    counts = [p.num_examples() for p in (task.train, task.validation, task.test)]
    assert sum(counts) == 300
    assert counts[2] == 60


@pytest.mark.slow
def test_dhen_is_measured_with_the_setting_of_its_best_trial_beside_the_best_model(
    task, monkeypatch
):
    linear = "DHEN, linear alone"
    monkeypatch.setattr(dhen, "L2", (0.0, 100.0))
    monkeypatch.setattr(dhen, "DHEN", {linear: dhen.DHEN[linear]})
    monkeypatch.setattr(dhen, "MODELS", {name: dhen.MODELS[name] for name in ("deepfm", "dlrm")})
    trials = dict(dhen.tune(task, TINY, {}))
    assert len(trials) == 2 * 3
    assert list(dhen.tune(task, TINY, trials)) == []
    trials[f"{linear}{TRIAL}0"]["lowest"] = trials[f"dlrm{TRIAL}100"]["lowest"] = -1.0
    found = dict(dhen.measure(task, 0, TINY, trials))
    assert {name: metrics["l2"] for name, metrics in found.items()} == {linear: 0, "dlrm": 100}
    assert all(0.3 < metrics["entropy"] < 3 for metrics in found.values())
    assert list(dhen.measure(task, 0, TINY, trials | found)) == []


def test_trials_have_a_seed_of_their_own():
    runs = {
        "a": {"0": {"entropy": 1.0}, "1": {"entropy": 2.0}},
        f"a{TRIAL}1": {str(TUNING_SEED): {"lowest": 3.0}},
    }
    assert published.known(runs, 1) == {"a": {"entropy": 2.0}, f"a{TRIAL}1": {"lowest": 3.0}}
    assert published.tuning_seeds(dhen) == [TUNING_SEED]
    assert published.tuning_seeds(architecture) == []


@pytest.mark.slow
def test_models_with_towers_are_measured_beside_the_flat_one(task, monkeypatch):
    monkeypatch.setattr(towers, "L2", (0.1,))
    chosen = {name: towers.CONTENDERS[name] for name in ("diverse, 1/4", "in order, 1/4")}
    monkeypatch.setattr(towers, "CONTENDERS", chosen)
    trials = dict(towers.tune(task, TINY, {}))
    (trial,) = trials.values()
    names = sorted([*task.train.schema.fields, *task.train.schema.continuous])
    for division in trial["towers"].values():
        assert len(division["fields"]) == towers.TOWERS
        assert sorted("+".join(division["fields"]).split("+")) == names
    found = dict(towers.measure(task, 0, TINY, trials))
    assert list(found) == [towers.FLAT, *chosen]
    assert found[towers.FLAT]["leaving"] == 8 * len(names)
    assert all(found[name]["leaving"] == 2 * len(names) for name in chosen)
    assert list(towers.measure(task, 0, TINY, trials | found)) == []


@pytest.mark.slow
def test_towers_follow_from_the_means_of_the_vectors_over_the_training_data(task):
    model = make(models.dcn, task, {"trees": False, "statistics": False, "crosses": ()}, 0)
    outputs = type(model)(model.inputs, model.get_layer("embedding").output)
    batches = task.batches(task.train, models.dcn, 64)
    vectors = [outputs({n: x[n] for n in model.input}).numpy() for x, *_ in batches]
    want = np.concatenate(vectors).mean(axis=0, dtype=np.float64)
    np.testing.assert_allclose(towers.field_means(model, task), want, atol=1e-7)


@pytest.mark.slow
def test_shampoo_is_measured_beside_diagonal_optimizers(task, monkeypatch):
    monkeypatch.setattr(shampoo, "RATES", (0.001,))
    monkeypatch.setattr(shampoo, "FREQUENCY", 2)
    monkeypatch.setattr(shampoo, "OPTIONS", {"hidden": (4,), "bottom": (4,)})
    monkeypatch.setattr(shampoo, "memory_of_a_replica", lambda: 0.5)
    trials = dict(shampoo.tune(task, TINY, {}))
    found = dict(shampoo.measure(task, 0, TINY, trials))
    assert found["Shampoo"]["step_time"] > 0
    lowest = min(found[name]["lowest"] for name in shampoo.DIAGONAL)
    chosen = {name: found[name] for name in shampoo.CONTENDERS}
    reached = [m["steps"] for m in chosen.values() if m["lowest"] <= lowest]
    assert reached
    assert all(steps > 0 for steps in reached)
    assert list(shampoo.measure(task, 0, TINY, trials | found)) == []


@pytest.mark.slow
def test_a_search_is_measured_beside_random_search(task, monkeypatch):
    space = search.SearchSpace(dense=[search.DenseWidth("hidden", (2, 4))])
    monkeypatch.setattr(architecture, "make_space", lambda: space)
    monkeypatch.setattr(architecture, "SEARCHED", 0.8)
    monkeypatch.setattr(architecture, "PASSES", search.Settings(warm_up=0, epochs=1, samples=0))
    found = dict(architecture.measure(task, 0, TINY, {}))
    assert found["largest network"]["flops"] == 1
    assert found["random search"]["trials"] >= 1
    assert found["random search"]["search_cpu"] >= found["differentiable search"]["search_cpu"]
    assert all(m["objective"] > 0.1 and m["flops"] <= 1 for m in found.values())
    assert list(architecture.measure(task, 0, TINY, found)) == []


@pytest.mark.slow
def test_hashes_are_measured_at_equal_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(hashes, "MIN_COUNT", 2)
    task = open_task("clusters", 0, 2000, tmp_path)
    found = dict(hashes.Hashes(4).measure(task, 0, TINY, {}))
    assert list(found) == list(hashes.CONTENDERS)
    largest = found["modulo"]["bytes"]
    assert all(largest - 3 * 64 < metrics["bytes"] <= largest for metrics in found.values())
    assert all(0.3 < metrics["entropy"] < 3 for metrics in found.values())
    assert list(hashes.Hashes(4).measure(task, 0, TINY, found)) == []


@pytest.mark.slow
def test_two_replicas_have_about_half_of_the_state_each():
    assert 0.5 <= shampoo.memory_of_a_replica() <= 0.55


@pytest.mark.slow
def test_snapshots_are_measured_and_the_command_resumes(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(snapshots, "SIZES", (0.1,))
    monkeypatch.setattr(snapshots, "L2", (0.0,))
    monkeypatch.setattr(snapshots, "RUNS", 1)
    monkeypatch.setattr(snapshots, "SNAPSHOTS", 2)
    monkeypatch.setattr(published.machine, "limit_threads", lambda threads: None)
    results = tmp_path / "published.json"
    arguments = {
        **{"part": ["snapshots"], "data": ["mixed"], "seeds": 1, "rows": 300, "threads": 2},
        **{"folder": tmp_path, "results": results, "epochs": 1, "batch_size": 64},
    }
    published.main(**arguments)
    runs = json.loads(results.read_text())["runs"]["snapshots on mixed"]
    assert len(runs) == 1 + 4 + 2 * 4
    monkeypatch.setattr(snapshots, "fit", None)  # a second training would fail
    published.main(**arguments)
    text = results.with_suffix(".md").read_text()
    assert "cyclic, perturbation 0.1, greedy" in text
    assert snapshots.CLAIM in text
