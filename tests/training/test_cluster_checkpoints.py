"""Of which run the checkpoints of a cluster are, and who may continue or remove them."""

import dataclasses
import json

import pytest

from twml_ops.checkpoint import CheckpointManager
from twml_ops.checkpoint.facts import FACTS
from twml_ops.distribute import Cluster
from twml_ops.planning import ShardedTable, ShardingPlan
from twml_ops.training import cluster_checkpoints
from twml_ops.training.cluster import (
    check_cluster,
    checkpoint_dir,
    stages_dir,
)
from twml_ops.training.cluster_checkpoints import ClusterCheckpoints, cluster_facts
from twml_ops.training.cluster_evaluator import append_evaluation
from twml_ops.training.cluster_stages import ClusterStages
from twml_ops.training.config import DEFAULT, ClusterOptions, RunConfig
from twml_ops.training.errors import UserError
from twml_ops.training.kept_results import TRIALS, KeptTrials
from twml_ops.training.reporter import SILENT

CONFIG = RunConfig("csv:a.csv", model="sparse_mlp", learning_rate=0.1, cluster=ClusterOptions())


@pytest.fixture(autouse=True)
def one_manager_a_test(monkeypatch):
    """A process keeps the lock of a folder, which would be that of several runs here."""
    monkeypatch.setattr(cluster_checkpoints, "manager_of", CheckpointManager)


@pytest.fixture
def start(monkeypatch):
    """Starts the cluster anew, with a name."""

    def start(name):
        config = {"cluster": {"ps": ["a:1"], "worker": ["b:1"]}, "start": name}
        config["task"] = {"type": "worker", "index": 0}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))

    return start


def interrupted_run(out, config=CONFIG):
    """What a run leaves that is interrupted: a checkpoint, its model and evaluations."""
    folder = checkpoint_dir(out)
    with CheckpointManager(folder, background=False) as manager:
        manager.save(7, [], {FACTS: cluster_facts(config)})
    stages = stages_dir(out, Cluster.from_environment().start_id)
    stages.mkdir()
    (stages / "stage-1.keras").write_text("the model")
    append_evaluation(folder, 7, {"log_loss": 0.5})
    return folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_process_that_is_restarted_continues_its_run(tmp_path, start):
    start("first")
    folder = interrupted_run(tmp_path / "run")
    before = names(folder)
    for overwrite in (False, True):
        ClusterCheckpoints(tmp_path / "run", CONFIG, resume=False, overwrite=overwrite)
    assert names(folder) == before


def test_another_start_continues_a_run_only_if_that_is_asked_for(tmp_path, start):
    start("first")
    folder = interrupted_run(tmp_path / "run")
    before = names(folder)
    start("second")
    with pytest.raises(UserError, match="use --resume to continue it, or --overwrite to begin"):
        ClusterCheckpoints(tmp_path / "run", CONFIG, resume=False, overwrite=False)
    assert names(folder) == before
    ClusterCheckpoints(tmp_path / "run", CONFIG, resume=True, overwrite=False)
    stages = stages_dir(tmp_path / "run", Cluster.from_environment().start_id)
    model = stages / "stage-1.keras"
    assert model.read_text() == "the model"  # that of the run, not one built anew
    assert len(names(folder)) == len(before)


def test_a_chief_that_is_restarted_has_the_trials_of_models_until_they_are_removed(tmp_path, start):
    start("first")
    config = dataclasses.replace(CONFIG, model="auto")
    for _ in range(2):
        saved = ClusterCheckpoints(tmp_path / "run", config, resume=False, overwrite=False)
        stages = ClusterStages(config, tmp_path / "run", SILENT, resume=False)
        before = stages.load_trials()
        stages.keep_trials(KeptTrials([], 3.0 if before is None else before.seconds + 1))
    assert stages.load_trials() == KeptTrials([], 4.0)
    saved.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"data": "csv:b.csv"}, "data"),
        ({"eval": "csv:e.csv"}, "eval"),
        ({"learning_rate": 0.2}, "learning_rate"),
        ({"seed": 9}, "seed"),
        ({"epochs": 2}, "epochs"),
        ({"cluster": ClusterOptions(mode="sync")}, "mode"),
    ],
)
def test_a_run_with_other_options_is_never_continued(tmp_path, start, changes, name):
    start("first")
    folder, other = (
        interrupted_run(tmp_path / "run"),
        CONFIG.__class__(**{**vars(CONFIG), **changes}),
    )
    before = names(folder)
    for again in ("first", "second"):  # also on the same servers, at the same addresses
        start(again)
        with pytest.raises(
            UserError, match=f"was written by a training with {name} = .*--overwrite"
        ):
            ClusterCheckpoints(tmp_path / "run", other, resume=True, overwrite=False)
        assert names(folder) == before


def test_options_that_change_the_speed_only_may_differ(tmp_path, start):
    start("first")
    interrupted_run(tmp_path / "run")
    options = ClusterOptions(timeout=10, checkpoint_every=5, partition_axis="row")
    faster = CONFIG.__class__(**{**vars(CONFIG), "cluster": options})
    ClusterCheckpoints(tmp_path / "run", faster, resume=False, overwrite=False)


@pytest.mark.parametrize("again", ["first", "second"])
def test_a_run_that_replaces_another_removes_what_it_left_and_nothing_else(tmp_path, start, again):
    start("first")
    folder = interrupted_run(tmp_path / "run")
    (folder / "notes.txt").write_text("of the user")
    start(again)
    other = CONFIG.__class__(**{**vars(CONFIG), "data": "csv:b.csv"})
    ClusterCheckpoints(tmp_path / "run", other, resume=False, overwrite=True)
    stages = stages_dir(tmp_path / "run", Cluster.from_environment().start_id)
    assert names(folder) == ["notes.txt", stages.name]
    assert names(stages) == ["run.json"]  # of the new run


def test_checkpoints_are_removed_with_their_folder(tmp_path, start):
    start("first")
    folder = interrupted_run(tmp_path / "run")
    ClusterCheckpoints(tmp_path / "run", CONFIG, resume=False, overwrite=False).remove()
    assert not folder.exists()


def test_a_run_without_a_checkpoint_yet_is_known_by_its_stages(tmp_path, start):
    start("first")
    ClusterCheckpoints(tmp_path / "run", CONFIG, resume=False, overwrite=False)
    folder = checkpoint_dir(tmp_path / "run")
    (stages_dir(tmp_path / "run", Cluster.from_environment().start_id) / "stage-1.json").touch()
    start("second")
    for resume, config, message in (
        (False, CONFIG, "use --resume to continue it"),
        (True, CONFIG.__class__(**{**vars(CONFIG), "seed": 3}), "seed = 0, got 3; use --overwrite"),
    ):
        with pytest.raises(UserError, match=message):
            ClusterCheckpoints(tmp_path / "run", config, resume=resume, overwrite=False)
    ClusterCheckpoints(tmp_path / "run", CONFIG, resume=True, overwrite=False)
    (stages,) = folder.glob("stages-*")
    assert names(stages) == ["run.json", "stage-1.json"]
    start("third")
    ClusterCheckpoints(tmp_path / "run", CONFIG, resume=False, overwrite=True)
    (stages,) = folder.glob("stages-*")
    assert names(stages) == ["run.json"]


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"model": "auto"}, "--model auto"),
        ({"storage": "folder"}, "--storage"),
    ],
)
def test_peers_refuse_what_they_cannot_train_and_quantize_checkpoints(options, refused):
    with pytest.raises(UserError, match=refused):
        check_cluster(RunConfig("csv:a.csv", **options), peers=True)
    check_cluster(RunConfig("csv:a.csv", checkpoint_bits=8), peers=True)
    with pytest.raises(UserError, match="--checkpoint-bits"):
        check_cluster(RunConfig("csv:a.csv", checkpoint_bits=8))


def test_tables_in_files_of_servers_are_updated_with_locks():
    def check(mode):
        check_cluster(RunConfig("a.csv", storage="rows", cluster=ClusterOptions(mode=mode)))

    check("async")
    check("sync")
    with pytest.raises(UserError, match="--storage: --mode hogwild updates tables without locks"):
        check("hogwild")


def test_a_plan_needs_a_model_and_a_file_that_is_one(tmp_path):
    path = tmp_path / "plan.json"

    def check(model):
        check_cluster(RunConfig("a.csv", model=model, cluster=ClusterOptions(plan=str(path))))

    with pytest.raises(UserError, match=r"--plan: .*No such file"):
        check("dcn")
    path.write_text('{"tables": []}')
    with pytest.raises(UserError, match="--plan: .*is no plan of"):
        check("dcn")
    plan = ShardingPlan((ShardedTable("table", 1),), (0.0, 0.0), (0.0, 0.0))
    path.write_text(json.dumps(plan.to_json(["fields/rows"])))
    check("dcn")
    with pytest.raises(UserError, match="name the model with --model"):
        check(DEFAULT)


def _fail(saved):
    with pytest.raises(ValueError, match="of another model"), saved.kept_if_begun():
        raise ValueError("a plan of another model")


def test_a_run_that_is_refused_leaves_nothing_unless_an_epoch_or_a_trial_has_ended(tmp_path, start):
    start("first")
    out = tmp_path / "run"
    stages = stages_dir(out, Cluster.from_environment().start_id)
    for name, is_kept in (
        ("stage-1.keras", False),
        ("stage-1.json", False),
        ("stage-1-epoch-1.json", True),
        (TRIALS, True),
    ):
        saved = ClusterCheckpoints(out, CONFIG, resume=False, overwrite=True)
        (stages / name).write_text("{}")
        _fail(saved)
        assert checkpoint_dir(out).exists() == is_kept
        if is_kept:
            (stages / name).unlink()


def test_a_run_that_is_refused_when_it_goes_on_keeps_its_checkpoints(tmp_path, start):
    start("first")
    out = tmp_path / "run"
    interrupted_run(out)
    before = names(checkpoint_dir(out))
    _fail(ClusterCheckpoints(out, CONFIG, resume=True, overwrite=False))
    assert names(checkpoint_dir(out)) == before


def test_a_process_that_is_to_be_started_again_keeps_the_stages(tmp_path, start):
    start("first")
    saved = ClusterCheckpoints(tmp_path / "run", CONFIG, resume=False, overwrite=False)
    with pytest.raises(SystemExit), saved.kept_if_begun():
        raise SystemExit(75)
    assert stages_dir(tmp_path / "run", Cluster.from_environment().start_id).is_dir()


def test_micro_batches_need_synchronous_workers():
    for mode in ("async", "hogwild"):
        options = ClusterOptions(mode=mode, micro_batches=4)
        with pytest.raises(UserError, match=f"--micro-batches: needs --mode sync, got {mode}"):
            check_cluster(RunConfig("a.csv", cluster=options))
    check_cluster(RunConfig("a.csv", cluster=ClusterOptions(mode="sync", micro_batches=4)))
