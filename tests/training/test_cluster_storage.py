"""`twml-ops launch ... train --storage`: the rows of large tables are in files of the servers."""

import json

import numpy as np
import pytest

from tests.training.test_cluster_runner import (
    chief,
    run_while_processes_are_killed,
    same_slots,
)
from twml_ops import _child
from twml_ops.cli import main
from twml_ops.training.trained_run import TrainedRun

# In the default tests: tests/distribute/parameter_server/storage_child_tests.py.
pytestmark = [pytest.mark.one_tf, pytest.mark.slow]

USERS, CACHE = 700, 2000


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """1,200 examples, so that the ones of the evaluation need fewer rows than the cache has."""
    path = tmp_path_factory.mktemp("data") / "a.csv"
    rng = np.random.default_rng(1)
    users = rng.permutation(np.arange(1200) % USERS)
    labels = rng.random(1200) < 0.1 + 0.8 * (users % 2)
    lines = [f"{int(y)},u{u},s{u % 5}" for y, u in zip(labels, users, strict=True)]
    path.write_text("\n".join(["label,user,site", *lines, ""]))
    return f"csv:{path}"


def options(folder, cache_rows):
    found = ["--model", "sparse_mlp", "--save-slots", "--validation", "random"]
    found += ["--set", "dropout=0"]
    return [*found, "--storage", str(folder / "rows"), "--cache-rows", str(cache_rows)]


def test_one_worker_with_files_of_a_server_trains_the_weights_of_one_process(data, tmp_path):
    more = ["--max-epochs", "2", *options(tmp_path, CACHE)]
    status, output = chief(data, tmp_path, *more)
    assert status == 0, output
    assert {path.name for path in (tmp_path / "rows").iterdir()} == {"server-0", "chief"}
    assert list(tmp_path.glob("rows/**/*.rows")) == []  # the files were removed
    alone = tmp_path / "alone"
    main(["train", "--data", data, "--out", str(alone), "--batch-size", "16", *more])
    cluster, process = (TrainedRun(tmp_path / name) for name in ("run", "alone"))
    weights = [run.model.trainable_variables for run in (cluster, process)]
    assert max(w.shape[0] for w in weights[0]) > CACHE
    for got, want in zip(*weights, strict=True):
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=0, atol=1e-4)
    same_slots(tmp_path / "run", alone)


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_cluster_with_files_whose_processes_are_killed_still_writes_its_run(mode, data, tmp_path):
    out = tmp_path / "run"
    more = ["--out", str(out), "--mode", mode, "--checkpoint-every", "5", "--timeout", "60"]
    more += ["--checkpoint-policy", "consecutive", "--batch-size", "32", "--debug"]
    more += ["--publish", str(tmp_path / "served"), "--max-epochs", "6", *options(tmp_path, CACHE)]
    command = _child.command("twml_ops.cli", "launch", "--ps", "2", "--workers", "2")
    command += ["--evaluator", "--", "train", "--data", data, *more]
    run_while_processes_are_killed(command, mode, 4)
    assert {"server-0", "server-1"} <= {path.name for path in (tmp_path / "rows").iterdir()}
    assert list(tmp_path.glob("rows/server-*/*.rows")) == []
    assert json.loads((out / "metrics.json").read_text())["auc"] > 0.7
    assert list((tmp_path / "served").iterdir())
    assert not out.with_name("run.checkpoints").exists()
