"""The log of the metrics of each checkpoint."""

import math

import pytest

from twml_ops.cli.runs import evaluation_log


def test_entries_are_read_in_order(tmp_path):
    assert evaluation_log.read(tmp_path) == []
    evaluation_log.append(tmp_path, 10, {"auc": 0.5, "log_loss": math.nan})
    evaluation_log.append(tmp_path, 20, {"auc": 0.75, "log_loss": 0.25})
    assert evaluation_log.read(tmp_path) == [
        {"step": 10, "auc": 0.5, "log_loss": None},
        {"step": 20, "auc": 0.75, "log_loss": 0.25},
    ]


def test_an_entry_is_written_whole_or_not_at_all(tmp_path):
    evaluation_log.append(tmp_path, 10, {"auc": 0.5})
    with pytest.raises(TypeError):
        evaluation_log.append(tmp_path, 20, {"auc": object()})
    assert [line["step"] for line in evaluation_log.read(tmp_path)] == [10]
    assert [p.name for p in tmp_path.iterdir()] == [evaluation_log.FILE]


def test_waiting_for_a_step_ends_after_the_timeout(tmp_path):
    assert not evaluation_log.wait_for_step(tmp_path, 10, 0)
    evaluation_log.append(tmp_path, 11, {"auc": 0.5})
    assert evaluation_log.wait_for_step(tmp_path, 10, 0)
    assert not evaluation_log.wait_for_step(tmp_path, 12, 0)


def test_the_log_is_copied_to_the_run_if_there_is_one(tmp_path):
    (tmp_path / "run").mkdir()
    evaluation_log.copy_to_run(tmp_path, tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []
    evaluation_log.append(tmp_path, 10, {"auc": 0.5})
    evaluation_log.copy_to_run(tmp_path, tmp_path / "run")
    assert evaluation_log.read(tmp_path / "run") == evaluation_log.read(tmp_path)
