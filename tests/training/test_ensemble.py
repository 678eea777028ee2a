"""`twml-ops train --ensemble N`: runs that differ in their seed, as one model."""

import json

import numpy as np
import pytest

from tests.trained_runs import write_libsvm
from twml_ops import core, models
from twml_ops.cli import main
from twml_ops.cli.run_task import run_task
from twml_ops.training.config import CheckpointOptions, ClusterOptions, RunConfig
from twml_ops.training.errors import UserError
from twml_ops.training.fit import check_ensemble, member_seeds
from twml_ops.training.trained_run import TrainedRun

pytestmark = pytest.mark.usefixtures("bare_runs")

SMALL = ["--model", "sparse_mlp", "--set", "units=4", "--set", "hidden=4"]
STOPPED = ["--validation", "random", "--max-epochs", "3", "--learning-rate", "0.3"]


def run(data, out, *options):
    main(["train", "--data", data, "--out", str(out), *SMALL, *options])
    return out


def facts_of(folder):
    return json.loads((folder / "run.json").read_text())


def weights(model):
    return np.concatenate([np.ravel(w) for w in model.get_weights()])


@pytest.fixture(scope="module")
def pair(libsvm, tmp_path_factory):
    """An ensemble of two, trained for one epoch."""
    out = tmp_path_factory.mktemp("runs") / "pair"
    return run(libsvm, out, "--epochs", "1", "--ensemble", "2")


def test_each_member_is_the_run_of_its_seed(libsvm, pair, tmp_path):
    members = models.ensemble_members(TrainedRun(pair).model)
    seeds = [member["seed"] for member in facts_of(pair)["members"]]
    assert seeds == member_seeds(0, 2)
    assert (weights(members[0]) != weights(members[1])).any()
    for member, seed in zip(members, seeds, strict=True):
        alone = run(libsvm, tmp_path / str(seed), "--epochs", "1", "--seed", str(seed))
        np.testing.assert_array_equal(weights(member), weights(TrainedRun(alone).model))


def test_an_ensemble_of_one_is_the_run_without_the_option(libsvm, tmp_path):
    alone = run(libsvm, tmp_path / "a", "--epochs", "1")
    one = run(libsvm, tmp_path / "b", "--epochs", "1", "--ensemble", "1")
    np.testing.assert_array_equal(*(weights(TrainedRun(out).model) for out in (alone, one)))
    assert facts_of(one)["members"] is None
    assert TrainedRun(one).model.name == "sparse_mlp"


def test_the_run_says_what_its_members_are(pair, capsys):
    facts, metrics = facts_of(pair), json.loads((pair / "metrics.json").read_text())
    assert (facts["model"], facts["ensemble"]) == ("sparse_mlp", 2)
    assert [m["examples"] for m in facts["members"]] == [480, 480]
    assert metrics["examples"] == 2 * 480
    assert metrics["seconds"] == pytest.approx(sum(m["seconds"] for m in facts["members"]))
    assert facts["weights"] == TrainedRun(pair).model.count_params()
    assert list(pair.glob("tensorboard/member_1/train/events*"))
    assert "the training of the first member" in (pair / "report.html").read_text("utf-8")
    capsys.readouterr()
    main(["info", str(pair)])
    shown = capsys.readouterr().out
    assert f"seed {facts['members'][1]['seed']}" in shown
    assert "ensemble             2\n" in shown


def test_predictions_exports_and_a_calibration_are_those_of_the_mean(pair, tmp_path, capsys):
    data = write_libsvm(tmp_path / "p.svm", 50, seed=8)
    trained = TrainedRun(pair)
    features, _ = next(iter(trained.source(data).dataset(50)))
    members = models.ensemble_members(trained.model)
    want = np.mean([member(features).numpy() for member in members], axis=0)[:, 0]
    capsys.readouterr()
    main(["predict", str(pair), "--data", data])
    np.testing.assert_allclose(np.fromstring(capsys.readouterr().out, sep="\n"), want, atol=1e-6)
    main(["export", str(pair), str(tmp_path / "scorer"), "--format", "scorer"])
    inputs = {name: ragged.flat_values.numpy() for name, ragged in features.items()}
    inputs["sparse_row_splits"] = features["sparse_ids"].row_splits.numpy()
    scorer = core.Scorer.load(tmp_path / "scorer")
    np.testing.assert_allclose(scorer.predict(inputs)[:, 0], want, atol=1e-6)
    main(["calibrate", str(pair), "--method", "platt", "--out", str(tmp_path / "calibrated")])
    calibrated = TrainedRun(tmp_path / "calibrated").model
    assert len(models.ensemble_members(calibrated)) == 2
    main(["explain", str(tmp_path / "calibrated"), "--rows", "100"])


def test_the_number_of_epochs_is_chosen_once_and_reused(libsvm, tmp_path):
    facts = facts_of(run(libsvm, tmp_path / "run", *STOPPED, "--ensemble", "2"))
    epochs, size = facts["trained_epochs"], facts["train_examples"]
    assert facts["epoch_choice"]["epochs"] == epochs
    assert [m["examples"] for m in facts["members"]] == [epochs * size] * 2


def test_without_a_refit_all_members_are_trained_on_the_same_part(libsvm, tmp_path):
    out = run(libsvm, tmp_path / "run", *STOPPED, "--no-refit", "--ensemble", "2")
    facts = facts_of(out)
    choice, (_, second) = facts["epoch_choice"], facts["members"]
    assert second["examples"] == choice["epochs"] * choice["fit_examples"]


def test_a_configuration_repeats_an_ensemble(pair, tmp_path):
    main(["train", "--config", str(pair), "--out", str(tmp_path / "again")])
    again = TrainedRun(tmp_path / "again").model
    np.testing.assert_array_equal(weights(again), weights(TrainedRun(pair).model))


def test_ensembles_of_successive_seeds_have_no_member_in_common():
    seeds = [s for seed in range(50) for s in member_seeds(seed, 6)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= s < 2**32 for s in seeds)
    assert member_seeds(7, 3) == member_seeds(7, 6)[:3]
    assert member_seeds(7, 1) == [7]


@pytest.mark.parametrize("job", ["ps", "chief", "evaluator"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checkpoint_bits": 8}, "checkpoints of a cluster are not quantized"),
        ({"storage": "files", "cache_rows": 0}, "--cache-rows must be at least 1, got 0"),
    ],
)
def test_every_process_of_a_cluster_refuses_what_it_cannot_train(
    job, options, message, tmp_path, monkeypatch
):
    members = {name: ["localhost:1"] for name in ("ps", "chief")}
    config = {"cluster": members, "task": {"type": job, "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    with pytest.raises(UserError, match=message):
        run_task(RunConfig("a", cluster=ClusterOptions(), **options), tmp_path / "run", False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("job", ["ps", "chief", "worker"])
@pytest.mark.parametrize(
    ("evaluators", "options", "message"),
    [
        ({}, {}, "needs an evaluator, which publishes the versions of a cluster"),
        ({"evaluator": ["localhost:1"]}, {"ensemble": 2}, "not with --ensemble"),
    ],
)
def test_every_process_of_a_cluster_refuses_what_it_cannot_publish(
    job, evaluators, options, message, tmp_path, monkeypatch
):
    members = {name: ["localhost:1"] for name in ("ps", "chief", "worker")}
    config = {"cluster": members | evaluators, "task": {"type": job, "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    run_config = RunConfig("a", cluster=ClusterOptions(), **options)
    publish = CheckpointOptions(publish=tmp_path / "served")
    with pytest.raises(UserError, match=message):
        run_task(run_config, tmp_path / "run", False, publish)
    assert list(tmp_path.iterdir()) == []


def test_a_size_of_zero_is_refused():
    with pytest.raises(UserError, match="--ensemble must be at least 1, got 0"):
        check_ensemble(RunConfig("a", ensemble=0))
