"""Which version of a model is served, and when another one replaces it."""

import gc
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("twml_ops.serving", reason="needs the extra `serve`")

from tests.serving.clients import constant_model, raw_model, sparse_model
from twml_ops.serving import ServerOptions
from twml_ops.serving.errors import NotFound
from twml_ops.serving.model import Model

REQUEST = {"instances": [[1]]}


def answer(model, number=None):
    return model.get(model.name, number).predict_json(REQUEST).values[0, 0]


def damage(folder):
    """Cuts the table of a model in half."""
    table = next(folder.glob("*table.npy"))
    table.write_bytes(table.read_bytes()[:300])


@pytest.fixture
def base(tmp_path):
    return tmp_path / "ranking"


def load(base, **options):
    model = Model(base, ServerOptions(**options))
    model.load_first()
    return model


def states(model):
    return [(s.number, s.name) for s in model.states()]


def test_the_newest_of_the_numbered_versions_is_served(base):
    for number in (2, 10, 9):
        constant_model(number, base / str(number))
    (base / "11").mkdir()  # without a program
    (base / "latest").mkdir()
    (base / "12").write_text("a file")
    model = load(base)
    assert (model.name, answer(model)) == ("ranking", 10)
    assert states(model) == [(10, "AVAILABLE")]
    assert not model.refresh()


def test_a_newer_version_replaces_the_served_one(base):
    constant_model(1, base / "1")
    model = load(base)
    constant_model(2, base / "2")
    assert answer(model) == 1
    assert model.refresh()
    assert answer(model) == answer(model, 2) == 2
    with pytest.raises(NotFound, match="version 1 .* is not served; version 2 is"):
        answer(model, 1)


def test_a_replaced_version_exists_until_its_last_request_ends(base):
    constant_model(1, base / "1")
    model = load(base)
    of_a_request = model.current
    constant_model(2, base / "2")
    model.refresh()
    assert states(model) == [(2, "AVAILABLE"), (1, "UNLOADING")]
    assert of_a_request.predict_json(REQUEST).values[0, 0] == 1
    del of_a_request
    gc.collect()
    assert states(model) == [(2, "AVAILABLE")]


def test_a_damaged_version_is_refused_and_the_old_one_stays(base):
    constant_model(1, base / "1")
    loads = []
    model = Model(base, ServerOptions(), loads.append)
    model.load_first()
    damage(constant_model(2, base / "2"))
    assert not model.refresh()
    assert answer(model) == 1
    assert states(model) == [(2, "END"), (1, "AVAILABLE")]
    assert "table" in model.states(2)[0].error_message
    assert not model.refresh()
    assert loads == [True, False]  # it is not read again
    assert not model.refresh(retry=True)
    assert loads == [True, False, False]
    shutil.rmtree(base / "2")
    constant_model(2, base / "2")
    assert model.refresh()
    assert states(model)[0] == (2, "AVAILABLE")
    assert answer(model) == 2


def test_an_older_version_is_served_if_the_newest_is_damaged(base):
    constant_model(1, base / "1")
    damage(constant_model(2, base / "2"))
    assert answer(load(base)) == 1


def test_an_older_version_is_served_after_the_newest_was_removed(base):
    for number in (1, 2):
        constant_model(number, base / str(number))
    model = load(base)
    shutil.rmtree(base / "2")
    assert model.refresh()
    assert answer(model) == 1


def test_the_served_version_stays_when_all_folders_are_gone(base):
    constant_model(3, base / "3")
    model = load(base)
    shutil.rmtree(base / "3")
    assert not model.refresh()
    assert answer(model) == 3
    base.rmdir()
    assert not model.refresh()
    assert answer(model) == 3


def test_a_link_that_changes_is_the_next_version(tmp_path):
    for name, value in (("monday", 5), ("tuesday", 6)):
        constant_model(value, tmp_path / name)
    link = tmp_path / "current"
    link.symlink_to("monday")
    model = load(link, name="m")
    assert states(model) == [(1, "AVAILABLE")]
    assert not model.refresh()
    (tmp_path / "next").symlink_to("tuesday")
    os.replace(tmp_path / "next", link)
    assert model.refresh()
    assert answer(model) == 6
    assert states(model) == [(2, "AVAILABLE")]


def test_a_version_may_have_other_inputs_and_outputs(base):
    constant_model(1, base / "1")
    model = load(base)
    raw_model(base / "2")
    assert model.refresh()
    assert set(model.current.signatures.by_name) == {"serving_default", "raw"}
    assert model.current.output_names == ["probability"]
    assert model.current.output_dims == {"probability": (4,)}


def test_a_version_of_changed_rows_is_served_with_the_arrays_of_its_base(base):
    from tests.export.test_scorer_files import changed, float_table, write

    tables = float_table()
    write(base / "1", tables)
    model = load(base)
    for number in (2, 3):
        tables = changed(tables, [1, 7])
        write(base / str(number), tables, base / str(number - 1))
        assert model.refresh()
        got = model.current.predict_json({"instances": [[1], [2], [7]]}).values
        np.testing.assert_array_equal(got, tables["table"][[1, 2, 7]])
    assert states(model)[0] == (3, "AVAILABLE")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda base: None, FileNotFoundError, "is no folder"),
        (lambda base: base.mkdir(), FileNotFoundError, "has no scorer.json"),
        (lambda base: damage(constant_model(1, base)), ValueError, "table"),
        (lambda base: damage(constant_model(1, base / "1")), ValueError, "table"),
    ],
)
def test_a_folder_without_a_version_is_an_error(base, make, error, message):
    make(base)
    with pytest.raises(error, match=message):
        load(base)


@pytest.mark.parametrize("place", ["version", "option"])
def test_a_version_that_refuses_the_saved_request_is_refused(base, tmp_path, place):
    body = {"instances": [{"x_ids": [1], "x_values": [1]}]}  # constant models have no values
    sparse_model(base / "1")
    saved = base / "1" / "warmup.json" if place == "version" else tmp_path / "saved.json"
    saved.write_text(json.dumps(body))
    model = load(base, warmup=None if place == "version" else saved)
    assert model.current.output_dims == {"output": (16,)}
    constant_model(2, base / "2")
    if place == "version":
        shutil.copy(saved, base / "2")
    assert not model.refresh()
    assert "warm-up request" in model.states(2)[0].error_message
    assert model.current.number == 1


def test_a_model_that_refuses_made_up_rows_is_served(base):
    from tests.core import scorer_programs

    example = scorer_programs.examples()["percentile_discretize"]
    op, inputs, outputs, arrays, attributes = example.steps[0]
    arrays = arrays | {"feature_ids": arrays["feature_ids"] + 1}  # not 0, the id of the rows
    example.steps[0] = op, inputs, outputs, arrays, attributes | {"unknown": "error"}
    model = load(example.write(base))
    body = {"instances": [{"x_ids": [0], "x_values": [0]}]}
    with pytest.raises(Exception, match="0"):
        model.current.predict_json(body)
    body = {"instances": [{"x_ids": [1], "x_values": [0]}]}
    assert model.current.predict_json(body).values.shape == (1, 5)


def test_no_answer_is_wrong_while_versions_replace_each_other(base):
    constant_model(1, base / "1")
    model = load(base)
    body = {"instances": [[1]] * 40}

    def ask(_):
        version = model.current
        values = version.predict_json(body).values
        np.testing.assert_array_equal(values, np.float32(version.number))
        return version.number

    with ThreadPoolExecutor(4) as pool:
        asked = []
        for number in range(2, 30):
            asked += [pool.submit(ask, i) for i in range(20)]
            constant_model(number, base / f".{number}")
            os.replace(base / f".{number}", base / str(number))
            assert model.refresh()
        seen = {future.result() for future in asked}
    assert len(seen) > 1
    assert answer(model) == 29
