"""What was trained is not lost by what fails after the training."""

from pathlib import Path

import pytest
import tensorflow as tf

from tests.small_files import small_files
from tests.trained_runs import write_libsvm
from twml_ops.cli import main
from twml_ops.report.run_files import write_model
from twml_ops.training.errors import UserError
from twml_ops.training.run_folder import new_file, new_folder, write_result

pytestmark = pytest.mark.usefixtures("bare_runs")

MODEL = Path(__file__).with_name("asserting_model.py")


def train(folder, data, held_out, *options):
    """The files and folders beside the data after a `train` that fails."""
    before = set(folder.iterdir())
    command = ["train", "--data", data, "--eval", held_out, "--out", str(folder / "run")]
    with pytest.raises(SystemExit) as end:
        main([*command, "--batch-size", "32", "--checkpoint-every", "0", *options])
    assert end.value.code == 1
    return sorted(path.name for path in set(folder.iterdir()) - before)


@pytest.mark.one_tf
def test_the_model_is_kept_if_it_cannot_be_evaluated(tmp_path, capsys):
    data, held_out = (write_libsvm(tmp_path / f"{n}.svm", n) for n in (1300, 301))
    left = train(tmp_path, data, held_out, "--model", f"{MODEL}:build", "--max-epochs", "1")
    assert left == ["run.kept-1"]
    kept = tmp_path / "run.kept-1" / "model.keras"
    assert f"The trained model is kept: {kept}" in capsys.readouterr().err.replace("\n", "")
    assert tf.keras.models.load_model(kept).count_params() > 0


@pytest.mark.one_tf
def test_an_evaluation_row_that_cannot_be_read_is_found_before_the_training(tmp_path, capsys):
    data, held_out = (write_libsvm(tmp_path / name, 200) for name in ("a.svm", "b.svm"))
    (tmp_path / "b.svm").write_text((tmp_path / "b.svm").read_text() + "+1 1:oops\n")
    assert train(tmp_path, data, held_out) == []
    output = capsys.readouterr()
    assert "b.svm" in output.err
    assert "201" in output.err
    assert "epoch" not in output.out


def test_a_result_for_which_there_is_no_room_is_kept_elsewhere(tmp_path, monkeypatch):
    out, elsewhere = tmp_path / "scores.txt", tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    with (
        pytest.raises(UserError, match=r"scores\.txt: cannot be written: .* is kept in") as error,
        new_file(out) as part,
    ):
        write_result(part / "no room", out, lambda path: path.write_text("hours"))
    (kept,) = elsewhere.rglob("scores.txt")
    assert str(error.value).endswith(str(kept))
    assert kept.read_text() == "hours"
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]


def test_a_model_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    inputs = tf.keras.Input([100])
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(100)(inputs))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    out = tmp_path / "run"
    with small_files(1000), pytest.raises(OSError, match="too large"), new_folder(out) as folder:
        write_model(folder, out, model)
    assert list(tmp_path.iterdir()) == []
