"""The commands that take a finished run."""

import inspect
import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import twml_ops
from tests.pairwise import on_both
from tests.trained_runs import write_criteo, write_libsvm
from twml_ops import models, ops
from twml_ops.cli import main
from twml_ops.cli.info import run_info
from twml_ops.core import Scorer
from twml_ops.report.run_files import write_saved_model
from twml_ops.training.errors import UserError
from twml_ops.training.run_folder import METRICS_FILE, RUN_FILE
from twml_ops.training.trained_run import TrainedRun

pytestmark = pytest.mark.usefixtures("bare_runs")


@pytest.mark.parametrize("name", on_both(["libsvm_run", "criteo_run"], "criteo_run"))
def test_evaluation_again_gives_the_metrics_of_the_run(request, capsys, name):
    run = request.getfixturevalue(name)
    capsys.readouterr()
    main(["evaluate", str(run), "--json"])
    got = json.loads(capsys.readouterr().out)
    want = json.loads((run / "metrics.json").read_text())
    for key in ("auc", "pr_auc", "log_loss", "normalized_entropy", "rce", "calibration"):
        assert got[key] == pytest.approx(want[key], rel=1e-6)


@pytest.mark.one_tf
def test_evaluation_on_other_data_prints_a_table(libsvm_run, tmp_path, capsys):
    main(["evaluate", str(libsvm_run), "--data", write_libsvm(tmp_path / "b.svm", 50, seed=1)])
    out = capsys.readouterr().out
    assert "ROC AUC" in out
    assert "50" in out


def test_evaluation_of_the_held_out_rows_by_range_is_that_of_the_run(libsvm, libsvm_run, capsys):
    capsys.readouterr()
    main(["evaluate", str(libsvm_run), "--data", f"{libsvm}[480:600]", "--json"])
    got = json.loads(capsys.readouterr().out)
    want = json.loads((libsvm_run / "metrics.json").read_text())
    assert got["log_loss"] == pytest.approx(want["log_loss"], rel=1e-6)
    assert got["examples"] == 120


def test_prediction_is_a_probability_for_each_example_in_order(libsvm_run, tmp_path, capsys):
    data = write_libsvm(tmp_path / "b.svm", 30, seed=1)
    capsys.readouterr()
    main(["predict", str(libsvm_run), "--data", data, "--batch-size", "7"])
    printed = np.array(capsys.readouterr().out.split(), float)
    main(["predict", str(libsvm_run), "--data", data, "--out", str(tmp_path / "p.txt")])
    trained = TrainedRun(libsvm_run)
    features, _ = next(iter(trained.source(data).dataset(30)))
    want = trained.model(features).numpy()[:, 0]
    np.testing.assert_allclose(printed, want, rtol=1e-5)
    np.testing.assert_allclose(np.loadtxt(tmp_path / "p.txt"), want, rtol=1e-5)


@pytest.mark.one_tf
def test_a_fast_export_says_what_it_needs(libsvm_run, tmp_path, capsys):
    main(["export", str(libsvm_run), str(tmp_path / "served"), "--format", "fast"])
    assert "import twml_ops.ops" in capsys.readouterr().out
    signatures = tf.saved_model.load(str(tmp_path / "served")).signatures
    assert set(signatures) == {"serving_default", "raw", "tf_example", "features"}


@pytest.mark.parametrize("form", ["stock", "scorer"])
def test_exports_without_our_ops_predict_as_predict_does(libsvm, libsvm_run, tmp_path, form):
    trained = TrainedRun(libsvm_run)
    features, _ = next(iter(trained.source(libsvm).dataset(30)))
    want = trained.model(features)
    main(["export", str(libsvm_run), str(tmp_path / "served"), "--format", form])
    inputs = {name: rows.flat_values.numpy() for name, rows in features.items()}
    inputs["sparse_row_splits"] = features["sparse_ids"].row_splits.numpy()
    if form == "scorer":
        scorer = Scorer.load(tmp_path / "served")
        assert scorer.output_name == "probability"  # as in the signatures of SavedModels
        got = scorer.predict(inputs)
    else:
        serve = tf.saved_model.load(str(tmp_path / "served")).signatures["features"]
        got = serve(**{k: tf.constant(v) for k, v in inputs.items()})["probability"].numpy()
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_info_shows_the_run_and_the_installation(libsvm_run, capsys):
    main(["info", str(libsvm_run)])
    out = capsys.readouterr().out
    assert "dcn" in out
    assert "log loss" in out
    main(["info"])
    out = capsys.readouterr().out
    assert tf.__version__ in out
    assert "lazy_adam" in out


def damaged_jsons(whole):
    """Texts of a JSON file without each of its entries, and with other values in its place."""
    yield from ("", "{", "[]", "null", "[" * 100_000, json.dumps({"a": 1})[:-1], "\x00")
    for name, value in whole.items():
        yield json.dumps({k: v for k, v in whole.items() if k != name})
        for other in (None, 7, "x", [], [None], {}, {"x": None}, [[1]], {"trials": [{}]}):
            yield json.dumps({**whole, name: other})
        if isinstance(value, dict):
            for inner in value:
                yield json.dumps({**whole, name: {**value, inner: None}})
                yield json.dumps({**whole, name: {k: v for k, v in value.items() if k != inner}})


@pytest.mark.one_tf
@pytest.mark.parametrize("file", [RUN_FILE, METRICS_FILE])
def test_a_damaged_file_of_a_run_is_an_error_that_names_it(libsvm_run, tmp_path, file):
    for name in (RUN_FILE, METRICS_FILE):
        (tmp_path / name).write_bytes((libsvm_run / name).read_bytes())
    known = json.loads((libsvm_run / file).read_text())
    whole = {"members": None, "model_choice": None, "cluster": None, "labels": {}, **known}
    errors = []
    for text in damaged_jsons(whole):
        (tmp_path / file).write_text(text)
        for read in (run_info, TrainedRun):
            try:
                read(tmp_path)
            except UserError as e:
                errors.append(str(e))
    assert len(errors) > 10
    assert all(file in error for error in errors)


@pytest.mark.one_tf
def test_info_lists_the_options_of_a_model(capsys):
    main(["info", "dcn"])
    out = capsys.readouterr().out
    defaults = inspect.signature(models.dcn).parameters
    assert f"--set units={json.dumps(defaults['units'].default)}" in out
    assert f"--set rank={json.dumps(defaults['rank'].default)}" in out
    assert "an integer or null: rank of their matrices W" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "{tmp}"], "not a finished run"),
        (["evaluate", "{tmp}/none"], "no such folder"),
        (["predict", "{tmp}", "--data", "flights"], "not a finished run"),
        (["export", "{tmp}", "{tmp}/x"], "not a finished run"),
        (["export", "{run}", "{run}"], "holds a finished run"),
        (["export", "{run}", "{tmp}/x", "--tables", "int4"], "needs --format"),
        (["info", "{tmp}"], "not a finished run"),
        (["info", "nosuch"], "no such folder, and no model: unknown model 'nosuch'"),
        (["evaluate", "{run}", "--data", "criteo:{tmp}/none"], "none"),
        (["nosuch"], "nosuch"),
    ],
)
def test_wrong_use_is_one_line(libsvm_run, tmp_path, capfd, arguments, message):
    capfd.readouterr()
    with pytest.raises(SystemExit) as exit_:
        main([a.format(tmp=tmp_path, run=libsvm_run) for a in arguments])
    err = capfd.readouterr().err
    assert exit_.value.code in (1, 2)
    assert err.count("\n") == 1
    assert message in err


def test_damaged_model_file_is_one_line(libsvm_run, tmp_path, capfd):
    (tmp_path / "run.json").write_bytes((libsvm_run / "run.json").read_bytes())
    (tmp_path / "model.keras").write_bytes((libsvm_run / "model.keras").read_bytes()[:999])
    with pytest.raises(SystemExit):
        main(["evaluate", str(tmp_path)])
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert "model.keras" in err


@pytest.mark.one_tf
def test_the_version_is_printed(capsys):
    main(["--version"])
    assert capsys.readouterr().out == f"twml-ops {twml_ops.__version__}\n"


@pytest.mark.one_tf
def test_the_help_and_the_version_do_not_import_tensorflow():
    code = (
        "import sys; from twml_ops.cli import main\n"
        "for arguments in (['--version'], ['train', '--help']):\n"
        "    main(arguments)\n"
        "assert not {'tensorflow', 'sklearn', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--learning-rate" in done.stdout


@pytest.mark.one_tf
def test_wrong_files_and_columns_are_found_without_tensorflow(tmp_path):
    (tmp_path / "a.csv").write_text("event,x\n" + "".join(f"{i % 2},{i}.5\n" for i in range(20)))
    train = ["train", "--data", f"{tmp_path}/a.csv", "--out", f"{tmp_path}/run"]
    commands = {
        "event": ["schema", f"{tmp_path}/a.csv", "--label", "event"],
        "no such file": ["train", "--data", f"{tmp_path}/b.csv", "--out", f"{tmp_path}/run"],
        "no column `clicked`": [*train, "--label", "clicked"],
        "no column `price`": [*train, "--label", "event", "--numeric", "price"],
        "no such eval": [*train, "--label", "event", "--eval", f"{tmp_path}/no such eval.csv"],
    }
    code = (
        "import contextlib, json, sys; sys.modules['tensorflow'] = None\n"
        "from twml_ops.cli import main\n"
        "for arguments in json.loads(sys.argv[1]):\n"
        "    with contextlib.suppress(SystemExit):\n"
        "        main(arguments)\n"
    )
    command = [sys.executable, "-c", code, json.dumps([*commands.values()])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    schema, *errors = commands
    assert schema in done.stdout
    lines = done.stderr.splitlines()
    assert len(lines) == len(errors)
    for line, error in zip(lines, errors, strict=True):
        assert error in line
    assert [*tmp_path.iterdir()] == [tmp_path / "a.csv"]


def test_a_run_of_a_model_on_fields_is_evaluated_explained_and_calibrated(
    fields_run, tmp_path, capsys
):
    assert models.layout_of(TrainedRun(fields_run).model) == "fields"
    metrics = json.loads((fields_run / "metrics.json").read_text())
    assert metrics["auc"] > 0.7
    capsys.readouterr()
    main(["evaluate", str(fields_run), "--json"])
    assert json.loads(capsys.readouterr().out)["log_loss"] == pytest.approx(metrics["log_loss"])
    main(["explain", str(fields_run), "--json"])
    explained = json.loads(capsys.readouterr().out)["features"]
    assert len(explained) == 39
    assert explained[0]["importance"] > 0
    calibrated = tmp_path / "calibrated"
    main(["calibrate", str(fields_run), "--out", str(calibrated), "--method", "platt"])
    main(["predict", str(calibrated), "--data", TrainedRun(fields_run).facts["data"]])


def test_prediction_needs_the_columns_of_the_features_only(fields_run, tmp_path, capsys):
    data = write_criteo(tmp_path / "c.tsv", 20, seed=3)
    names = [*(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
    features = [line.partition("\t")[2] for line in (tmp_path / "c.tsv").read_text().splitlines()]
    (tmp_path / "features.tsv").write_text("\n".join(["\t".join(names), *features, ""]))
    capsys.readouterr()
    main(["predict", str(fields_run), "--data", data])
    want = capsys.readouterr().out
    main(["predict", str(fields_run), "--data", f"csv:{tmp_path}/features.tsv"])
    assert capsys.readouterr().out == want


WITHOUT_US = """
import sys
sys.modules["twml_ops"] = None
import numpy as np, tensorflow as tf
with np.load(sys.argv[1]) as f:
    columns = {k: tf.constant(v) for k, v in f.items()}
served, run = (tf.saved_model.load(path) for path in sys.argv[2:4])
got = served.signatures["serving_default"](**columns)["probability"].numpy()
np.save(sys.argv[4], got)
assert list(run.signatures) == ["serving_default"]
"""


@pytest.mark.one_tf
@pytest.mark.parametrize("form", [None, "scorer"])
def test_exports_take_the_raw_columns_of_a_run(fields_run, tmp_path, form, capsys):
    """By default in a process without this package, as TensorFlow Serving has none."""
    data = write_criteo(tmp_path / "c.tsv", 20, seed=3)
    capsys.readouterr()
    main(["predict", str(fields_run), "--data", data])
    want = np.array(capsys.readouterr().out.split(), float)
    served = tmp_path / "served"
    main(["export", str(fields_run), str(served), *(("--format", form) if form else ())])
    lines = [line.split("\t") for line in (tmp_path / "c.tsv").read_text().splitlines()]
    cells = np.array(lines).T
    columns = {f"C{i}": cells[13 + i] for i in range(1, 27)}
    for i in range(1, 14):
        columns[f"I{i}"] = np.array([float(x or "nan") for x in cells[i]], np.float32)
    if form == "scorer":
        got = Scorer.load(served).predict(columns)
    else:
        np.savez(tmp_path / "columns.npz", **columns)
        paths = [tmp_path / "columns.npz", served, fields_run / "saved_model", tmp_path / "got.npy"]
        done = subprocess.run(
            [sys.executable, "-I", "-c", WITHOUT_US, *paths],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        got = np.load(tmp_path / "got.npy")
    np.testing.assert_allclose(got[:, 0], want, atol=1e-5)


@pytest.mark.one_tf
def test_a_model_without_a_stock_form_keeps_a_saved_model(tmp_path):
    table = tf.ones([5, 1])

    @tf.function(autograph=False)
    def product(ids):  # traced with our ops before the export
        flat = tf.reshape(ids, [-1])
        return ops.sparse_linear(flat, None, tf.range(tf.size(flat, tf.int64) + 1), table)

    traced = product.get_concrete_function(tf.TensorSpec([None, 1], tf.int64))

    class Traced(tf.keras.layers.Layer):
        def call(self, ids):
            return traced(ids)

    inputs = tf.keras.Input([1], dtype="int64")
    model = tf.keras.Model(inputs, Traced()(inputs))
    with pytest.warns(UserWarning, match="needs `import twml_ops.ops`: the model contains Twml>"):
        write_saved_model(tmp_path / "saved_model", model)
    loaded = tf.saved_model.load(str(tmp_path / "saved_model"))
    np.testing.assert_array_equal(loaded(tf.constant([[3]], tf.int64)), [[1]])
