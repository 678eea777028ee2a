"""The log of the metrics of each checkpoint."""

import math

import pytest

from twml_ops.training.cluster import EVALUATIONS
from twml_ops.training.cluster_evaluator import (
    append_evaluation,
    copy_evaluations,
    read_evaluations,
    wait_for_evaluation,
)
from twml_ops.training.errors import UserError


def test_entries_are_read_in_order(tmp_path):
    assert read_evaluations(tmp_path) == []
    append_evaluation(tmp_path, 10, {"auc": 0.5, "log_loss": math.nan})
    append_evaluation(tmp_path, 20, {"auc": 0.75, "log_loss": 0.25})
    assert read_evaluations(tmp_path) == [
        {"step": 10, "auc": 0.5, "log_loss": None},
        {"step": 20, "auc": 0.75, "log_loss": 0.25},
    ]


def test_an_entry_is_written_whole_or_not_at_all(tmp_path):
    append_evaluation(tmp_path, 10, {"auc": 0.5})
    with pytest.raises(TypeError):
        append_evaluation(tmp_path, 20, {"auc": object()})
    assert [line["step"] for line in read_evaluations(tmp_path)] == [10]
    assert [p.name for p in tmp_path.iterdir()] == [EVALUATIONS]


def test_waiting_for_a_step_ends_after_the_timeout(tmp_path):
    assert not wait_for_evaluation(tmp_path, 10, 0)
    append_evaluation(tmp_path, 11, {"auc": 0.5})
    assert wait_for_evaluation(tmp_path, 10, 0)
    assert not wait_for_evaluation(tmp_path, 12, 0)


def test_the_log_is_copied_to_the_run_if_there_is_one(tmp_path):
    (tmp_path / "run").mkdir()
    copy_evaluations(tmp_path, tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []
    append_evaluation(tmp_path, 10, {"auc": 0.5})
    copy_evaluations(tmp_path, tmp_path / "run")
    assert read_evaluations(tmp_path / "run") == read_evaluations(tmp_path)


@pytest.mark.parametrize("line", ["[" * 100_000, "3", '{"step": "x"}', "{", "\udcff"])
def test_a_damaged_log_is_named(tmp_path, line):
    append_evaluation(tmp_path, 10, {"auc": 0.5})
    with open(tmp_path / EVALUATIONS, "a", errors="surrogateescape") as log:
        log.write(line + "\n")
    with pytest.raises(UserError, match=f"{EVALUATIONS}: is damaged"):
        read_evaluations(tmp_path)
