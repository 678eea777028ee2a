"""`twml-ops train --publish` writes versions of a scorer while it trains."""

import json

import numpy as np
import pytest

from tests.trained_runs import write_libsvm
from twml_ops.cli import main
from twml_ops.core import Scorer
from twml_ops.training.trained_run import TrainedRun

pytestmark = pytest.mark.usefixtures("bare_runs")

ENTRIES = {"sparse_ids": [1, 3, 5], "sparse_row_splits": [0, 3]}


@pytest.fixture(scope="module")
def libsvm(tmp_path_factory):
    return write_libsvm(tmp_path_factory.mktemp("data") / "a.svm", 400)


def train(libsvm, tmp_path, *options):
    command = ["train", "--data", libsvm, "--out", str(tmp_path / "run"), "--model", "sparse_mlp"]
    command += ["--publish", str(tmp_path / "served"), "--batch-size", "32", "--epochs", "1"]
    main([*command, *options])


def test_checkpoints_and_the_final_model_are_versions(libsvm, tmp_path):
    # The model ends in a correction that is no part of the training.
    options = ["--checkpoint-every", "4", "--checkpoint-policy", "consecutive"]
    train(libsvm, tmp_path, *options, "--negative-rate", "0.9")
    versions = sorted((tmp_path / "served").iterdir(), key=lambda v: int(v.name))
    programs = [json.loads((v / "scorer.json").read_text()) for v in versions]
    assert [len(programs), programs[0].get("step") is not None, "step" in programs[-1]] == [
        *(2, True, False)
    ]
    assert programs[-1]["output_name"] == "probability"
    export = tmp_path / "export"
    main(["export", str(tmp_path / "run"), str(export), "--format", "scorer"])
    rows = {
        name: input_array(name, len(ENTRIES["sparse_ids"])) for name in Scorer.load(export).inputs
    }
    got, want = (Scorer.load(folder).predict(rows) for folder in (versions[-1], export))
    np.testing.assert_array_equal(got, want)
    assert TrainedRun(tmp_path / "run").facts.get("publish") is None  # it can be repeated


def input_array(name, entries):
    """An input of a scorer, of one example."""
    if name.endswith("row_splits"):
        return np.array([0, entries])
    return np.arange(entries) if name.endswith("ids") else np.ones(entries, np.float32)


@pytest.mark.one_tf
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ensemble", "2"], "not with --ensemble"),
        (["--model", "auto"], "not with --model auto"),
        (["--checkpoint-every", "0"], "without checkpoints"),
    ],
)
def test_versions_are_those_of_one_model_with_checkpoints(
    libsvm, tmp_path, options, message, capsys
):
    with pytest.raises(SystemExit):
        train(libsvm, tmp_path, *options)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "served").exists()
