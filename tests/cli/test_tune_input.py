"""`twml-ops tune-input`: all settings read the same examples, and faster ones are kept."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from twml_ops.cli import main
from twml_ops.data import InputSettings, Pipeline, tune_pipeline

pytestmark = pytest.mark.one_tf  # the command measures pipelines of tf.data as they are

EXAMPLE = Path(__file__).parents[2] / "examples" / "input_pipeline.py"


def example():
    spec = importlib.util.spec_from_file_location("input_pipeline", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    module = example()
    module.write(folder, files=3, rows=100)
    return module.pipeline(folder)


def contents(dataset):
    """(ids, values, label) of every example, sorted."""
    rows = []
    for batch in dataset:
        ids, values = batch["ids"].to_list(), batch["values"].to_list()
        rows += zip(map(tuple, ids), map(tuple, values), batch["label"][:, 0].numpy(), strict=True)
    return sorted(rows)


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_first": True},
        {"read_files": 3},
        {"parallel_calls": 2},
        {"batch_first": True, "read_files": 2, "parallel_calls": 2, "prefetch": 4},
    ],
)
def test_settings_do_not_change_the_examples(pipeline, settings):
    want = contents(pipeline.dataset())
    assert len(want) == 300
    assert contents(pipeline.dataset(InputSettings(**settings))) == want


@pytest.mark.parametrize("settings", [InputSettings(), InputSettings(True, 2, 2, 4)])
def test_the_code_to_paste_is_the_pipeline(pipeline, settings):
    files = sorted(tf.io.gfile.glob(pipeline.files))
    names = {
        "tf": tf,
        "files": files,
        "reader": pipeline.reader,
        "parse_one": pipeline.parse_one,
        "parse_batch": pipeline.parse_batch,
    }
    exec(pipeline.code(settings), names)
    for got, want in zip(names["dataset"], pipeline.dataset(settings), strict=True):
        np.testing.assert_array_equal(got["ids"].flat_values, want["ids"].flat_values)


def test_only_faster_settings_are_kept(pipeline):
    def rate(s):  # batching helps, two files too, but more of them do not
        return 100.0 * (1 + s.batch_first) * (1 + (s.read_files == 2)) + s.prefetch

    trials = list(tune_pipeline.search(pipeline, rate, cores=4))
    kept = [t for t in trials if t.taken]
    assert kept[-1].settings == InputSettings(batch_first=True, read_files=2)
    assert kept[-1].rate == max(t.rate for t in kept)
    assert {t.change for t in trials} >= {"as it is", "read 4 files at once", "4 batches ahead"}


def test_the_command_prints_before_after_and_settings(pipeline, tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(
        f"import importlib.util\nfrom pathlib import Path\n"
        f"spec = importlib.util.spec_from_file_location('p', {str(EXAMPLE)!r})\n"
        "module = importlib.util.module_from_spec(spec)\nspec.loader.exec_module(module)\n"
        f"p = module.pipeline(Path({str(Path(pipeline.files).parent)!r}))\n"
    )
    main(["tune-input", f"{path}:p", "--seconds", "0.05", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert 0 < found["before"] <= found["after"]
    assert set(found["settings"]) == {"batch_first", "read_files", "parallel_calls", "prefetch"}
    main(["tune-input", f"{path}:p", "--seconds", "0"])
    out = capsys.readouterr().out
    assert "× as fast" in out
    assert "tf.data.Dataset.from_tensor_slices(files)" in out


def test_a_reference_without_a_pipeline_is_an_error(tmp_path, capsys):
    path = tmp_path / "none.py"
    path.write_text("p = 3\n")
    for reference, message in ((f"{path}:p", "must be a twml_ops.data.Pipeline"), ("x", "FILE.py")):
        with pytest.raises(SystemExit):
            main(["tune-input", reference])
        assert message in capsys.readouterr().err
    with pytest.raises(ValueError, match="at least one file"):
        Pipeline(str(tmp_path / "*.none"), 2, lambda x: x).dataset()
