"""The data of the workers of a cluster, and the numbers of its stages."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from twml_ops.checkpoint import State
from twml_ops.data import libsvm, open_source, text
from twml_ops.distribute import Cluster
from twml_ops.training.callbacks import EarlyStopping
from twml_ops.training.cluster import worker_batches, worker_data
from twml_ops.training.cluster_runner import ClusterRunner
from twml_ops.training.cluster_stages import ClusterStages
from twml_ops.training.config import ClusterOptions, RunConfig
from twml_ops.training.errors import UserError
from twml_ops.training.kept_results import KeptTrials
from twml_ops.training.reporter import SILENT
from twml_ops.training.stage_training import Stage

ROWS = 120


def source_of(folder):
    path = folder / "x.libsvm"
    path.write_text("".join(f"{i % 2} {i + 1}:1\n" for i in range(ROWS)))
    return open_source(f"libsvm:{path}?dim={ROWS}")


def batches(part, position=None):
    return part.dataset(8, shuffle=True, seed=1, position=position)


def batches_of(source, index, count, first_batch=0):
    data = worker_data(source, index, count)
    return worker_batches(data, batches, seed=1, batch_size=8, first_batch=first_batch)


def ids_of(dataset):
    return [int(i) for features, _ in dataset for i in features["sparse_ids"].flat_values]


def test_each_worker_parses_its_share_of_the_data(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "CHUNK_BYTES", 40)
    source, seen, count = source_of(tmp_path), [], 3
    parsed = []
    parse = libsvm.LibsvmSource._parse

    def counting(self, chunk):
        parsed.append(len(chunk.text))
        return parse(self, chunk)

    monkeypatch.setattr(libsvm.LibsvmSource, "_parse", counting)
    size = (tmp_path / "x.libsvm").stat().st_size
    for index in range(count):
        parsed.clear()
        seen += ids_of(batches_of(source, index, count))
        assert abs(sum(parsed) - size / count) <= 80
    assert sorted(seen) == list(range(ROWS))


def test_workers_divide_the_batches_of_data_that_have_few_units(tmp_path):
    source, count = source_of(tmp_path), 2
    shares = [ids_of(batches_of(source, index, count)) for index in range(count)]
    assert [len(share) for share in shares] == [64, 56]
    assert sorted(shares[0] + shares[1]) == list(range(ROWS))


@pytest.mark.parametrize("chunk", [40, 1 << 20])  # with parts, and with shares of all batches
def test_a_worker_goes_on_with_any_batch(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(text, "CHUNK_BYTES", chunk)
    source, count = source_of(tmp_path), 2
    for index in range(count):
        dataset = batches_of(source, index, count)
        each = [ids_of([batch]) for _ in range(3) for batch in dataset]
        for first in (1, 5, len(each) // 3, len(each) // 3 + 2):
            rest = batches_of(source, index, count, first)
            got = [ids_of([batch]) for _ in range(2) for batch in rest]
            assert got == each[first : first + len(got)]
            assert len(got) > len(each) // 3


@pytest.fixture
def stages(tmp_path, monkeypatch):
    """The stages of a chief whose cluster is connected already."""
    monkeypatch.setattr(Cluster, "connect", lambda self, timeout: None)
    config = {"cluster": {"ps": ["a:1"], "worker": ["b:1"]}}
    config["task"] = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    asked = RunConfig("csv:a.csv", cluster=ClusterOptions())
    return ClusterStages(asked, tmp_path / "run", SILENT, resume=False)


def test_a_model_that_cannot_be_built_is_no_stage_for_which_workers_wait(stages):
    def fail():
        raise ValueError("an option that the model refuses")

    runner = ClusterRunner(stages, stages.asked, None, False, SILENT)
    with pytest.raises(ValueError, match="the model refuses"):
        runner.build(fail)
    stages.announce(stages.next_number, Stage(stages.asked, "all", 3, True))
    assert Stage.from_json(stages.decisions.get("stage-1")).epochs == 3
    assert stages.next_number == 2


def test_a_chief_that_decides_otherwise_after_a_restart_is_refused(stages, tmp_path):
    stages.announce(1, Stage(stages.asked, "all", 3, True))
    again = ClusterStages(stages.asked, tmp_path / "run", SILENT, resume=False)
    again.announce(1, Stage(stages.asked, "all", 3, True))
    once_more = ClusterStages(stages.asked, tmp_path / "run", SILENT, resume=False)
    with pytest.raises(UserError, match="the data have changed; use --overwrite"):
        once_more.announce(1, Stage(stages.asked, "all", 4, True))


def test_a_continued_run_may_change_options_that_change_the_speed_only(stages, tmp_path):
    stages.announce(1, Stage(stages.asked, "all", 3, True))
    options = ClusterOptions(timeout=10, checkpoint_every=5, partition_axis="row")
    asked = dataclasses.replace(stages.asked, cluster=options, checkpoint_policy="consecutive")
    again = ClusterStages(asked, tmp_path / "run", SILENT, resume=True)
    again.announce(1, Stage(asked, "all", 3, True))
    again.keep_trials(KeptTrials([], 1.0))
    assert stages.load_trials().seconds == 1
    other = dataclasses.replace(asked, seed=7)
    once_more = ClusterStages(other, tmp_path / "run", SILENT, resume=True)
    with pytest.raises(UserError, match="stage 1 of the run was another training"):
        once_more.announce(1, Stage(other, "all", 3, True))
    with pytest.raises(UserError, match="was written by a training with seed = 0, got 7"):
        once_more.load_trials()


@pytest.mark.parametrize("content", [b"[" * 100_000, b"{", b"\xff"])
def test_a_damaged_decision_is_named(stages, content):
    stages.announce(1, Stage(stages.asked, "all", 3, True))
    (Path(stages.decisions.folder) / "stage-1.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"stage-1.json: is damaged"):
        stages.decisions.get("stage-1")


def test_the_best_weights_of_a_stage_that_are_missing_are_named(stages):
    stages.announce(1, Stage(stages.asked, "all", 3, True))
    stopping = EarlyStopping(2, restore=True)
    stages.restore_weights(stopping)  # there is no best epoch yet
    best = State({"best_epoch": 2, "best_loss": 0.5}, {})
    stopping.restore_state(best)
    with pytest.raises(UserError, match="the weights of epoch 2, the best of stage 1, are missing"):
        stages.restore_weights(stopping)
    stages.keep_weights(2, State(best.values, {"0": np.ones(3)}))
    stages.restore_weights(stopping)
    np.testing.assert_array_equal(stopping.checkpoint_state().arrays["0"], np.ones(3))
