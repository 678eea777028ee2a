"""A scorer of changed rows predicts as the whole one, and shares the memory of its base."""

import json
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core import scorer_programs
from twml_ops import core
from twml_ops.export.scorer_files import base_name, write_scorer

ROWS, WIDTH = 20_000, 16  # 1.28 MB as float32
IDS = {"x_ids": np.arange(ROWS), "x_row_splits": np.arange(ROWS + 1)}


def write(folder, tables, base=None, bias=0.0):
    """Writes a model whose output is a row of its table."""
    example = scorer_programs.Example()
    arrays = {**tables, "bias": np.full(WIDTH, bias, np.float32)}
    example.step("sparse_linear", example.batch("x", ROWS, False), ["#0"], arrays)
    ((op, inputs, outputs, _, attributes),) = example.steps
    files = {f"000_{key}.npy": array for key, array in arrays.items()}
    names = {key: f"000_{key}.npy" for key in arrays}
    step = {"op": op, "in": inputs, "out": outputs, "arrays": names, "attributes": attributes}
    program = {"inputs": example.inputs, "steps": [step], "output": "#0"}
    write_scorer(folder, program, files, base)
    return folder


def float_table(seed=0):
    return {"table": np.random.default_rng(seed).normal(size=(ROWS, WIDTH)).astype(np.float32)}


def changed(tables, rows):
    made = {key: array.copy() for key, array in tables.items()}
    for array in made.values():
        array[rows] = array[rows][::-1] + array.dtype.type(1)
    return made


def program_of(folder):
    return json.loads((folder / "scorer.json").read_text())


def size_of(folder):
    return sum(file.stat().st_size for file in folder.iterdir())


@pytest.mark.parametrize("rows", [[], [0], [ROWS - 1], [3, 4, 5, 10_000], range(0, ROWS, 4)])
def test_predictions_are_those_of_the_whole_export(tmp_path, rows):
    old = float_table()
    new = changed(old, list(rows))
    base = write(tmp_path / "1", old)
    whole, delta = write(tmp_path / "w", new, bias=2), write(tmp_path / "2", new, base, bias=2)
    assert program_of(delta)["format"] == 2
    assert size_of(delta) < size_of(whole) / 2
    want = core.Scorer.load(whole).predict(IDS)
    np.testing.assert_array_equal(core.Scorer.load(delta).predict(IDS), want)


def test_the_base_is_unchanged_in_the_file_and_in_scorers_that_use_it(tmp_path):
    old = float_table()
    base = write(tmp_path / "1", old)
    before = (base / "000_table.npy").read_bytes()
    scorer = core.Scorer.load(base)
    want = scorer.predict(IDS)
    delta = core.Scorer.load(write(tmp_path / "2", changed(old, [1, 7]), base))
    assert (delta.predict(IDS) != want).any()
    np.testing.assert_array_equal(scorer.predict(IDS), want)
    assert (base / "000_table.npy").read_bytes() == before


def test_a_reload_of_changed_rows_replaces_the_model(tmp_path):
    tables = float_table()
    scorer = core.Scorer.load(write(tmp_path / "1", tables))
    for number in range(2, 6):
        tables = changed(tables, [number, number * 100])
        # The base of a base is the whole export, so changes add up.
        scorer.reload(write(tmp_path / str(number), tables, tmp_path / str(number - 1)))
        np.testing.assert_array_equal(scorer.predict(IDS), tables["table"])
        assert program_of(tmp_path / str(number))["base"]["folder"] == "1"


@pytest.mark.parametrize("form", ["bfloat16", "scaled_int8"])
def test_smaller_tables_have_changed_rows_too(tmp_path, form):
    old = scorer_programs.tables(4 * ROWS, WIDTH, form)
    new = {key: array.copy() for key, array in old.items()}
    new["table"][5:9] = new["table"][100:104]
    base = write(tmp_path / "1", old)
    delta = write(tmp_path / "2", new, base)
    assert program_of(delta)["format"] == 2
    want = core.Scorer.load(write(tmp_path / "w", new)).predict(IDS)
    np.testing.assert_array_equal(core.Scorer.load(delta).predict(IDS), want)


def test_an_array_with_many_changed_rows_or_another_shape_is_whole(tmp_path):
    old = float_table()
    base = write(tmp_path / "1", old)
    many = changed(old, list(range(ROWS // 4 + 1)))
    longer = {"table": np.concatenate([old["table"], old["table"][:5]])}
    for number, tables in (("2", many), ("3", longer)):
        folder = write(tmp_path / number, tables, base)
        assert program_of(folder)["format"] == 1
        assert "base" not in program_of(folder)
        got = core.Scorer.load(folder).predict(IDS)
        np.testing.assert_array_equal(got, tables["table"][:ROWS])


def test_nan_and_minus_zero_are_changes_of_bits(tmp_path):
    old = float_table()
    old["table"][3] = np.nan
    old["table"][4] = 0.0
    new = {"table": old["table"].copy()}
    new["table"][4] = -0.0
    delta = write(tmp_path / "2", new, write(tmp_path / "1", old))
    assert np.load(delta / "000_table_rows.npy").tolist() == [4]


def test_a_base_elsewhere_or_without_a_fingerprint_is_refused(tmp_path):
    base = write(tmp_path / "1", float_table())
    with pytest.raises(ValueError, match="must be another folder"):
        write(tmp_path / "sub" / "2", float_table(), base)
    with pytest.raises(ValueError, match="must be another folder"):
        write(base, float_table(), base)
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "2", float_table(), tmp_path / "nothing")
    edit(base, lambda program: program.pop("fingerprint"))
    with pytest.raises(ValueError, match="must have a fingerprint"):
        write(tmp_path / "2", float_table(), base)


@pytest.mark.parametrize(
    "program", ["", "[" * 100_000, "[]", '{"base": "1"}', '{"base": {"folder": 1}}'], ids=range(5)
)
def test_a_damaged_program_of_an_earlier_scorer_is_one_clear_error(program, tmp_path):
    base = write(tmp_path / "1", float_table())
    (base / "scorer.json").write_text(program)
    with pytest.raises(ValueError, match=r"scorer\.json|of a scorer"):
        write(tmp_path / "2", float_table(), base)
    with pytest.raises(ValueError, match=r"scorer\.json|of a scorer"):
        base_name(base)
    assert not (tmp_path / "2").exists()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    root = tmp_path_factory.mktemp("pair")
    old = float_table()
    write(root / "1", old)
    write(root / "2", changed(old, [5, 6, 7]), root / "1")
    return root


def copied(pair, root):
    for name in ("1", "2"):
        shutil.copytree(pair / name, root / name)
    return root / "1", root / "2"


def edit(folder, change):
    program = program_of(folder)
    del program["crc32"]  # as its error asks for
    change(program)
    (folder / "scorer.json").write_text(json.dumps(program))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p["base"].update(folder="../1"), "the name of a folder beside"),
        (lambda p: p["base"].update(folder=".."), "the name of a folder beside"),
        (lambda p: p["base"].update(folder="gone"), "cannot be opened"),
        (lambda p: p["base"].update(fingerprint="other"), "another fingerprint"),
        (lambda p: p["base"].pop("fingerprint"), "and a fingerprint"),
        (lambda p: p.pop("base"), 'has no "base"'),
        (lambda p: p["steps"][0]["arrays"]["table"].update(file="../x"), "the name of a file"),
        (lambda p: p["steps"][0]["arrays"]["table"].pop("rows"), "the name of a file"),
        (lambda p: p["steps"][0]["arrays"]["table"].update(values="x.npy"), "checksums of x.npy"),
    ],
)
def test_a_damaged_program_is_refused(pair, tmp_path, change, message):
    _, delta = copied(pair, tmp_path)
    edit(delta, change)
    with pytest.raises(ValueError, match=message):
        core.Scorer.load(delta)


@pytest.mark.parametrize(
    ("rows", "values", "message"),
    [
        ([5, 6, ROWS], np.zeros((3, WIDTH), np.float32), "out of range"),
        ([-1, 6, 7], np.zeros((3, WIDTH), np.float32), "out of range"),
        ([5, 6], np.zeros((3, WIDTH), np.float32), "must have 2 rows"),
        ([5, 6, 7], np.zeros((3, WIDTH + 1), np.float32), "must have 3 rows"),
        ([5, 6, 7], np.zeros((3, WIDTH), np.int8), "must have 3 rows"),
        ([5, 6, 7], np.zeros(3, np.float32), "must have 3 rows"),
        ([5.0, 6, 7], np.zeros((3, WIDTH), np.float32), "int64 of 1 dimension"),
        ([[5, 6, 7]], np.zeros((3, WIDTH), np.float32), "int64 of 1 dimension"),
    ],
)
def test_rows_that_do_not_fit_are_refused(pair, tmp_path, rows, values, message):
    _, delta = copied(pair, tmp_path)
    np.save(delta / "000_table_rows.npy", np.array(rows))
    np.save(delta / "000_table_values.npy", values)
    edit(delta, lambda program: program.pop("checksums"))
    with pytest.raises(ValueError, match=message):
        core.Scorer.load(delta)


@settings(max_examples=150)
@given(data=st.data())
def test_damaged_files_are_read_or_refused(pair, tmp_path_factory, data):
    root = tmp_path_factory.mktemp("damaged")
    _, delta = copied(pair, root)
    files = ["scorer.json", "000_table_rows.npy", "000_table_values.npy"]
    file = delta / data.draw(st.sampled_from(files))
    content = bytearray(file.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    file.write_bytes(bytes(content))
    try:
        core.Scorer.load(delta).predict({"x_ids": [5], "x_row_splits": [0, 1]})
    except ValueError:
        pass
    finally:
        shutil.rmtree(root)
