"""`twml-ops calibrate`: a new run whose model ends in a calibration layer."""

import json
import re
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.trained_runs import write_libsvm
from twml_ops.cli import main
from twml_ops.training.trained_run import TrainedRun

# On both TensorFlows: tests/cli/test_commands.py calibrates a run and reads its model again.
pytestmark = pytest.mark.one_tf


def mostly_negative(path, n):
    """Examples without three quarters of the positives: predictions of the model are too high."""
    write_libsvm(path, n, seed=3)
    lines = path.read_text().splitlines(keepends=True)
    kept = [line for i, line in enumerate(lines) if line.startswith("-") or i % 4 == 0]
    path.write_text("".join(kept))
    return f"libsvm:{path}"


@pytest.fixture(scope="module")
def shifted(tmp_path_factory):
    return mostly_negative(tmp_path_factory.mktemp("data") / "s.svm", 1500)


@pytest.fixture(scope="module", params=["isotonic", "platt"])
def calibrated(request, libsvm_run, shifted, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "calibrated"
    arguments = ["--data", shifted, "--method", request.param, "--out", str(out)]
    main(["calibrate", str(libsvm_run), *arguments])
    return out


def evaluated(capsys, *arguments):
    capsys.readouterr()
    main(["evaluate", *arguments, "--json"])
    return json.loads(capsys.readouterr().out)


def test_folder_has_the_files_of_a_run(calibrated, libsvm_run):
    assert sorted(p.name for p in calibrated.iterdir()) == sorted(
        p.name for p in libsvm_run.iterdir()
    )
    assert list(json.loads((calibrated / "metrics.json").read_text())) == list(
        json.loads((libsvm_run / "metrics.json").read_text())
    )


def test_predictions_that_were_too_high_are_corrected(calibrated, libsvm_run, shifted, capsys):
    held_out = json.loads((calibrated / "run.json").read_text())["eval_source"]
    assert held_out.startswith(shifted)
    before = evaluated(capsys, str(libsvm_run), "--data", held_out)
    after = evaluated(capsys, str(calibrated), "--data", held_out)
    assert before["calibration"] > 1.5
    assert 0.75 < after["calibration"] < 1.3
    assert after["log_loss"] < before["log_loss"]
    assert after["auc"] == pytest.approx(before["auc"], abs=0.02)


def test_evaluation_again_gives_the_metrics_of_the_run(calibrated, capsys):
    got = evaluated(capsys, str(calibrated))
    want = json.loads((calibrated / "metrics.json").read_text())
    for key in ("auc", "pr_auc", "log_loss", "normalized_entropy", "rce", "calibration"):
        assert got[key] == pytest.approx(want[key], rel=1e-6)


def test_saved_model_and_keras_file_predict_the_same(calibrated):
    trained = TrainedRun(calibrated)
    features, _ = next(iter(trained.source(None).dataset(32)))
    want = trained.model(features).numpy()
    restored = tf.saved_model.load(str(calibrated / "saved_model"))
    np.testing.assert_allclose(restored(features), want, rtol=1e-5)
    flat = {key: ragged.flat_values for key, ragged in features.items()}
    flat["sparse_row_splits"] = features["sparse_ids"].row_splits
    served = restored.signatures["serving_default"](**flat)["probability"]
    np.testing.assert_allclose(served, want, rtol=1e-5)


def test_report_shows_before_and_after(calibrated):
    page = (calibrated / "report.html").read_text(encoding="utf-8")
    assert page.count('src="data:image/svg+xml;base64,') == 4
    assert "<h2>Reliability before and after the calibration</h2>" in page
    assert "<th>before</th><th>after</th>" in page
    assert "http" not in re.sub(r"base64,[^\"]*", "", page)


def test_info_shows_the_calibration(calibrated, shifted, capsys):
    capsys.readouterr()
    main(["info", str(calibrated)])
    out = capsys.readouterr().out
    assert re.search(r"calibration method\s+(isotonic|platt)", out)
    assert re.search(rf"calibration data\s+{re.escape(shifted)}", out)


def test_data_and_eval_choose_the_examples(libsvm, libsvm_run, shifted, tmp_path, capsys):
    arguments = ["--data", shifted, "--eval", f"{libsvm}[480:600]", "--method", "platt"]
    main(["calibrate", str(libsvm_run), *arguments, "--out", str(tmp_path / "run")])
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["eval_examples"] == 120
    assert run["calibration"]["source"] == shifted
    got = evaluated(capsys, str(tmp_path / "run"))
    want = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert got["log_loss"] == pytest.approx(want["log_loss"], rel=1e-6)


def test_the_default_is_the_evaluation_data_of_the_run(libsvm_run, tmp_path, capsys):
    main(["calibrate", str(libsvm_run), "--method", "platt", "--out", str(tmp_path / "run")])
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (run["calibration"]["examples"], run["eval_examples"]) == (96, 24)
    out = capsys.readouterr().out
    assert "before" in out
    assert "warning" not in out


def test_calibrating_on_the_training_data_prints_a_warning(libsvm, libsvm_run, tmp_path, capsys):
    arguments = ["--data", libsvm, "--method", "platt", "--out", str(tmp_path / "run")]
    main(["calibrate", str(libsvm_run), *arguments])
    assert "the model was trained on these data" in capsys.readouterr().out


def one_class(folder):
    (folder / "one.svm").write_text("+1 1:1\n" * 50)
    return f"libsvm:{folder}/one.svm"


def test_wrong_use_is_one_line_and_leaves_no_folder(
    libsvm_run, shifted, calibrated, tmp_path, capfd
):
    run, out = str(libsvm_run), str(tmp_path / "out")
    cases = [
        ([run, "--method", "nosuch"], "unknown method 'nosuch': expected one of isotonic, platt"),
        ([run, "--data", f"libsvm:{tmp_path}/none"], "none"),
        ([run, "--data", one_class(tmp_path)], "has only labels of 1, expected both classes"),
        ([run, "--data", shifted + "[0:1]"], "cannot be split"),
        ([run, "--data", "flights"], "adds continuous features"),
        ([str(tmp_path)], "not a finished run"),
        (
            [str(calibrated)],
            f"is calibrated already; calibrate the run that it was made from, {run}",
        ),
    ]
    before = sorted(tmp_path.iterdir())
    for arguments, message in cases:
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main(["calibrate", *arguments, "--out", out])
        err = capfd.readouterr().err
        assert exit_.value.code == 1
        assert err.count("\n") == 1, err
        assert message in err
        assert sorted(tmp_path.iterdir()) == before


def test_without_scikit_learn_the_error_of_isotonic_names_the_remedies(
    libsvm_run, tmp_path, capfd, monkeypatch
):
    monkeypatch.setitem(sys.modules, "sklearn.isotonic", None)  # as if it were not installed
    with pytest.raises(SystemExit):
        main(["calibrate", str(libsvm_run), "--out", str(tmp_path / "out")])
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert 'pip install "twml_ops[calibrate]", or use --method platt' in err
    assert not list(tmp_path.iterdir())
