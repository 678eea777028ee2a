"""`Classifier` is `twml-ops train`, `predict`, `evaluate`, `explain` and `export` without files."""

import copy
import json
import pickle
import random
import subprocess
import sys

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import twml_ops
from tests.classifier.frames import clicks
from twml_ops import Classifier
from twml_ops.classifier.labels import classes_of, encoded
from twml_ops.cli import main
from twml_ops.core import Scorer
from twml_ops.training.trained_run import TrainedRun

SPEEDS = {"examples_per_second", "seconds"}
CHEAP = {"model": "logistic", "epochs": 1}


def read(path):
    return json.loads(path.read_text())


def weights_of(model):
    return [np.asarray(w) for w in model.get_weights()]


@pytest.mark.one_tf
def test_fit_trains_the_model_of_the_command_on_a_file_of_the_same_rows(fitted, command_run):
    ours, theirs = weights_of(fitted._fitted.model), weights_of(TrainedRun(command_run).model)
    for mine, of_command in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(mine, of_command)
    metrics = read(command_run / "metrics.json")
    assert {k: v for k, v in fitted.metrics_.items() if k not in SPEEDS} == {
        k: v for k, v in metrics.items() if k not in SPEEDS
    }
    schema = TrainedRun(command_run).schema
    assert (fitted.schema_, fitted.schema_.typed) == (schema, schema.typed)
    assert (schema.time, schema.group, schema.weight) == ("at", "user_id", "times_shown")
    assert schema.fields[-2:] == ("at.hour", "at.weekday")


@pytest.mark.one_tf
def test_a_saved_classifier_is_a_run_of_the_command(fitted, frame, command_run, tmp_path, capsys):
    fitted.save(tmp_path / "run")
    ours = {p.name for p in (tmp_path / "run").iterdir()}
    assert {p.name for p in command_run.iterdir()} - ours == {"tensorboard"}
    frame.to_parquet(tmp_path / "a.parquet")
    capsys.readouterr()
    main(["predict", str(tmp_path / "run"), "--data", str(tmp_path / "a.parquet")])
    of_command = np.array(capsys.readouterr().out.split(), float)
    np.testing.assert_allclose(of_command, fitted.predict_proba(frame)[:, 1], rtol=1e-6)
    with pytest.raises(ValueError, match="holds a finished run; use overwrite to replace"):
        fitted.save(tmp_path / "run")
    loaded = Classifier.load(tmp_path / "run")
    np.testing.assert_array_equal(loaded.predict_proba(frame), fitted.predict_proba(frame))
    assert loaded.classes_.tolist() == ["no", "yes"]
    assert loaded.feature_names_in_.tolist() == fitted.feature_names_in_.tolist()
    with pytest.raises(ValueError, match="its report has the plots"):
        loaded.plot.learning_curve()


@pytest.mark.one_tf
def test_commands_that_need_the_data_of_a_classifier_ask_for_a_file(
    fitted, frame, tmp_path, capsys
):
    fitted.save(tmp_path / "run")
    run, out = str(tmp_path / "run"), str(tmp_path / "out")
    for command in (["evaluate", run], ["explain", run], ["calibrate", run, "--out", out]):
        with pytest.raises(SystemExit):
            main(command)
        error = capsys.readouterr().err
        assert "trained on a pandas DataFrame in memory" in error, error
        assert "expected --data with examples in a file" in error
        assert "with the label" in error
    frame.to_parquet(tmp_path / "clicks.parquet")
    main(["evaluate", run, "--data", str(tmp_path / "clicks.parquet"), "--json"])
    assert json.loads(capsys.readouterr().out)["auc"] > 0.5


@pytest.mark.one_tf
def test_a_run_of_the_command_loads_and_predicts_as_the_classifier_that_was_fitted(
    fitted, frame, command_run
):
    loaded = Classifier.load(command_run)
    np.testing.assert_array_equal(loaded.predict_proba(frame), fitted.predict_proba(frame))
    assert (loaded.model, loaded.options, loaded.max_epochs) == ("sparse_mlp", {"units": 8}, 2)
    assert loaded.classes_.tolist() == [0, 1]


def test_copies_and_pickles_predict_the_same(fitted, frame):
    expected = fitted.predict_proba(frame[:50])
    for again in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted)):
        np.testing.assert_array_equal(again.predict_proba(frame[:50]), expected)
        assert again.get_params() == fitted.get_params()
        assert again.metrics_ == fitted.metrics_


def test_tables_of_every_library_with_columns_in_any_order_predict_the_same(fitted, frame):
    expected = fitted.predict_proba(frame)
    features = [c for c in frame.columns if c not in ("clicked", "times_shown")]
    others = [
        frame[features[::-1]].assign(another=1),
        frame.set_index(frame.index[::-1] * 3),
        frame.astype({"visits": "float64"}),  # as pandas reads integers with missing ones
        pl.from_pandas(frame),
        pa.Table.from_pandas(frame),
        pa.Table.from_pandas(frame).to_batches()[0],
    ]
    for other in others:
        np.testing.assert_array_equal(fitted.predict_proba(other), expected)
    one = fitted.predict_proba(frame[5:6])
    assert one.shape == (1, 2)
    np.testing.assert_allclose(one[0], expected[5], rtol=1e-5)


def test_the_scorer_answers_data_frames_as_the_classifier_does(fitted, frame, tmp_path):
    fitted.to_scorer(tmp_path / "scorer")
    scorer = Scorer.load(tmp_path / "scorer")
    expected = fitted.predict_proba(frame)[:, 1]
    floats = frame.astype({"visits": "float64"})  # as pandas reads integers with missing ones
    for table in (frame, pl.from_pandas(frame), pa.Table.from_pandas(frame), floats):
        np.testing.assert_allclose(scorer.predict(table)[:, 0], expected, rtol=1e-5)
    with pytest.raises(ValueError, match=r"columns \['city'\] are missing"):
        scorer.predict(frame.drop(columns="city"))
    with pytest.raises(ValueError, match="column 'age' must hold numbers, got (large_)?string"):
        scorer.predict(frame.assign(age="x"))
    with pytest.raises(ValueError, match="column 'visits' must hold .*, got 1.5 in row 0"):
        scorer.predict(floats.assign(visits=1.5))
    texts = frame.assign(tags=["|".join(tags) for tags in frame["tags"]])
    np.testing.assert_allclose(scorer.predict(texts)[:, 0], expected, rtol=1e-5)
    with pytest.raises(ValueError, match="column 'tags' must hold lists"):
        scorer.predict(frame.assign(tags=frame["at"]))


@pytest.mark.one_tf
@pytest.mark.slow
def test_a_loaded_run_is_saved_as_it_was(command_run, frame, tmp_path):
    loaded = Classifier.load(command_run)
    loaded.save(tmp_path / "again")
    names = {p.name for p in (tmp_path / "again").iterdir()}
    assert {p.name for p in command_run.iterdir()} - names == {"tensorboard"}
    again = Classifier.load(tmp_path / "again")
    np.testing.assert_array_equal(again.predict_proba(frame), loaded.predict_proba(frame))
    assert read(tmp_path / "again" / "metrics.json") == read(command_run / "metrics.json")


@pytest.mark.slow
def test_a_stock_saved_model_needs_no_op_library(fitted, tmp_path):
    fitted.to_saved_model(tmp_path / "stock", tables="int8")
    assert (tmp_path / "stock" / "saved_model.pb").exists()


def test_the_metrics_of_the_evaluation_data_are_found_again(fitted, frame):
    late = frame[-240:]  # the latest fifth, which `fit` has held out
    metrics = fitted.evaluate(late)
    of_fit = {name: fitted.metrics_[name] for name in metrics}
    assert metrics == pytest.approx(of_fit, rel=1e-5)
    late, labels = late.drop(columns="clicked"), late["clicked"]
    assert fitted.evaluate(late, labels) == metrics
    assert fitted.evaluate(late, labels, sample_weight=np.ones(240)) != metrics
    right = (fitted.predict(late) == labels.to_numpy()).mean()
    assert fitted.score(late, labels) == pytest.approx(right)


@pytest.mark.one_tf
def test_explanations_and_plots_come_from_the_same_analyses(fitted, frame):
    found = fitted.explain(frame, against=frame[:300], rows=500)
    assert {f.name for f in found.features} == {
        *fitted.schema_.continuous,
        *fitted.schema_.categorical,
    }
    assert found.examples == (1200, 300)
    figures = [fitted.plot.reliability(), fitted.plot.reliability(frame[:100])]
    figures += [fitted.plot.score_histogram(), fitted.plot.learning_curve()]
    figures += [fitted.plot.feature_bars(top=3)]
    assert [len(f.axes) for f in figures] == [1] * 5
    assert len(figures[-1].axes[0].patches) == 3


@pytest.mark.one_tf
def test_a_fit_that_fails_keeps_the_model_and_another_one_replaces_it(frame, capsys):
    random.seed(7), np.random.seed(7)  # noqa: NPY002
    expected = random.random(), np.random.rand()  # noqa: NPY002
    random.seed(7), np.random.seed(7)  # noqa: NPY002
    model = Classifier(**CHEAP, verbose=1)
    assert model.fit(frame, label="clicked") is model
    out = capsys.readouterr().out
    assert "trained by adagrad" in out
    assert "clicked" in out
    assert (random.random(), np.random.rand()) == expected  # noqa: NPY002
    before = model.predict_proba(frame)
    model.set_params(verbose=0)
    with pytest.raises(ValueError, match="the label member must have two classes"):
        model.fit(frame[frame.member.fillna(False)].assign(member=True), label="member")
    with pytest.raises(ValueError, match="no feature columns"):
        model.fit(frame[["clicked", "city"]], label="clicked", drop=["city"])
    np.testing.assert_array_equal(model.predict_proba(frame), before)
    assert model.classes_.tolist() == ["no", "yes"]
    other = frame[["age", "times_shown"]].to_numpy()
    labels = (frame["clicked"] == "yes").astype(int)
    model.fit(other[:900], labels[:900], eval=(other[900:], labels[900:]))
    facts = model._fitted.facts
    assert (facts["train_examples"], facts["eval_examples"]) == (900, 300)
    assert (model.classes_.tolist(), model.n_features_in_) == ([0, 1], 2)
    assert not hasattr(model, "feature_names_in_")
    with pytest.raises(ValueError, match="X has 1 features, but Classifier is expecting 2"):
        model.predict(other[:, :1])
    assert capsys.readouterr().out == ""


@pytest.mark.one_tf
def test_labels_in_y_train_on_all_rows_and_a_leak_is_a_warning(frame):
    X, y = frame.drop(columns=["clicked", "at"]), frame["clicked"]
    with pytest.warns(UserWarning, match="The feature after alone has an AUC of 1.0000"):
        model = Classifier(**CHEAP).fit(X.assign(after=y == "yes"), y)
    facts = model._fitted.facts
    assert (facts["train_examples"], facts["eval_examples"]) == (1200, 1200)
    assert model.schema_.labels == ("clicked",)


@pytest.mark.one_tf
def test_importing_is_cheap_and_mistakes_are_found_before_tensorflow_is_imported():
    code = """
        import sys, numpy as np, pyarrow as pa, twml_ops
        from twml_ops import Classifier
        names = "tensorflow", "sklearn", "pandas", "polars", "matplotlib", "rich"
        assert not {*names} & {*sys.modules}
        table = pa.table({"a": [1.0, 2.0], "label": [0, 1], "same": [1, 1]})
        for arguments in (
            dict(label="no such column"), dict(label="same"), dict(numeric=["b"]), dict(y=[0]),
            dict(numeric="a"), dict(weight="a", sample_weight=[1, 1]), dict(eval=[[1.0]]),
        ):
            try:
                Classifier().fit(table, **arguments)
            except ValueError as e:
                print(e)
        for parameters in (dict(batch_size=0), dict(epochs="2"), dict(options={"units": 3})):
            try:
                Classifier(**parameters).fit(table)
            except ValueError as e:
                print(e)
        try:
            Classifier().predict(table)
        except ValueError as e:
            print(e)
        try:
            Classifier().to_saved_model("", tables="int4")
        except ValueError as e:
            print(e)
        try:
            Classifier().save("")
        except ValueError as e:
            print(e)
        assert not ({*names} - {"pandas"}) & {*sys.modules}  # Arrow imports pandas
    """
    code = "\n".join(line[8:] for line in code.splitlines())
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    expected = [
        "label: there is no column 'no such column'",
        "the label same must have two classes, got one class: [1]",
        "numeric: there is no column 'b'",
        "inconsistent numbers of samples: [2, 1]",
        "numeric: expected names of columns, got the text 'a'",
        "weight and sample_weight cannot both be given",
        "eval: expected a data frame with labels, or a pair (X, y)",
        "batch_size must be at least 1, got 0",
        "epochs: expected an integer or null, got '2'",
        "options: expected the name of a model as well, got 'default'",
        "Call 'fit' before 'predict'",
        "tables: expected float32",
        "Call 'fit' before 'save'",
    ]
    for line, text in zip(made.stdout.splitlines(), expected, strict=True):
        assert text in line
    assert "Classifier" in dir(twml_ops)


@pytest.mark.slow
def test_nothing_but_arrow_and_numpy_is_needed(tmp_path):
    clicks().drop(columns=["tags"]).to_parquet(tmp_path / "a.parquet")
    code = """
import pickle, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("sklearn", "pandas", "polars"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
from pyarrow import parquet
from twml_ops import Classifier
table = parquet.read_table(sys.argv[1])
model = Classifier("logistic", epochs=1).fit(table, label="clicked")
assert pickle.loads(pickle.dumps(model)).predict(table).shape == (1200,)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.parquet")], check=True)


@pytest.mark.one_tf
def test_labels_of_64_bits_are_classes():
    labels = np.array([2**63 + 1, 7, 7], np.uint64)
    classes = classes_of("y", labels)
    assert classes.tolist() == [7, 2**63 + 1]
    assert encoded("y", labels, classes).to_pylist() == [1, 0, 0]
