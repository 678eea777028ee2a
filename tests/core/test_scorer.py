"""The native scorer agrees with a slow one in NumPy, and refuses whatever is damaged."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core import scorer_programs
from tests.core.numpy_scorer import Scorer as NumPyScorer
from twml_ops import core

EXAMPLES = scorer_programs.examples()


TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}  # sums of up to 100 products of about 4


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Writes an example once; returns its folder."""
    root = tmp_path_factory.mktemp("scorers")

    def folder(name):
        if not (root / name).exists():
            EXAMPLES[name].write(root / name)
        return root / name

    return folder


def assert_equals_reference(folder, example, rows=(0, 1, 7, 200)):
    scorer, reference = core.Scorer.load(folder), NumPyScorer.load(folder)
    for b in rows:
        request = example.request(b, seed=b)
        got = scorer_programs.side_by_side(scorer.predict(request, num_threads=1))
        with np.errstate(all="ignore"):
            want = np.asarray(scorer_programs.side_by_side(reference.predict(request)), np.float32)
        assert got.dtype == np.float32
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, **TOLERANCE)
        for threads in (2, 8):
            more = scorer_programs.side_by_side(scorer.predict(request, num_threads=threads))
            np.testing.assert_array_equal(got, more)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_step_equals_the_reference_for_any_number_of_rows_and_threads(folders, name):
    assert_equals_reference(folders(name), EXAMPLES[name])


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_row_has_the_same_bits_in_every_batch(folders, name):
    example = EXAMPLES[name]
    scorer = core.Scorer.load(folders(name))
    request = example.request(70, seed=5)
    whole = scorer_programs.side_by_side(scorer.predict(request))
    for b in (0, 31, 32, 69):
        one = {n: request[n][b : b + 1] for n in example.dense}
        for splits, (ids, values, _) in example.groups.items():
            begin, end = request[splits][b : b + 2]
            one[splits] = np.array([0, end - begin])
            one |= {n: request[n][begin:end] for n in (ids, values) if n}
        np.testing.assert_array_equal(
            scorer_programs.side_by_side(scorer.predict(one)), whole[b : b + 1]
        )


@pytest.mark.parametrize(
    "name", ["sparse_linear_float32_17", "sparse_linear_int8_5", "sparse_linear_int4_5", "hash_ids"]
)
def test_rows_of_thousands_of_entries_equal_the_reference(folders, name):
    scorer, reference = (kind.load(folders(name)) for kind in (core.Scorer, NumPyScorer))
    request = EXAMPLES[name].request(3, longest=9000)
    want = reference.predict(request)
    np.testing.assert_allclose(scorer.predict(request), want, rtol=1e-4, atol=1e-4)


def test_a_scorer_describes_what_it_takes(tmp_path):
    example = scorer_programs.Example()
    numbers = example.number("numbers", 2, 3)
    example.number("flags", 4, kind="bool")
    batch = example.batch("x", 50)
    example.step("reshape", [numbers], ["#r"], shape=[6])
    example.step("sparse_linear", batch, ["#s"], scorer_programs.tables(50, 6, "float32"))
    example.step("add", ["#r", "#s"], ["#0"])
    scorer = core.Scorer.load(example.write(tmp_path / "with"))
    assert scorer.output_name == "output"
    described = [
        ("flags", "dense", "float32", "", [4]),
        ("numbers", "dense", "float32", "", [2, 3]),
        ("x_ids", "ids", "int64", "x_row_splits", []),
        ("x_row_splits", "row_splits", "int64", "", []),
        ("x_values", "values", "float32", "x_row_splits", []),
    ]
    assert sorted(scorer.describe()) == described
    assert scorer.describe(raw=True) == []
    scorer = core.Scorer.load(example.write(tmp_path / "without", shapes=False))
    assert dict((name, dims) for name, *_, dims in scorer.describe())["numbers"] is None


@pytest.mark.parametrize(("value", "want"), [("p", "p"), (5, "must be a string")])
def test_the_name_of_the_output_is_that_of_the_program(tmp_path, value, want):
    EXAMPLES["mean"].write(tmp_path)
    file = tmp_path / "scorer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"output_name": value}))
    if value == "p":
        assert core.Scorer.load(tmp_path).output_name == want
    else:
        with pytest.raises(ValueError, match=want):
            core.Scorer.load(tmp_path)


def test_several_outputs_have_their_names_and_shapes(folders):
    scorer = core.Scorer.load(folders("outputs"))
    assert scorer.outputs == {"part": (2,), "matrix": (2, 3), "ids": (2,)}
    request = EXAMPLES["outputs"].request(4)
    made = scorer.predict(request)
    assert {name: x.shape for name, x in made.items()} == {
        "part": (4, 2),
        "matrix": (4, 2, 3),
        "ids": (4, 2),
    }
    np.testing.assert_array_equal(made["matrix"], request["x"])
    np.testing.assert_array_equal(made["part"], request["x"].reshape(4, 6)[:, 1:3])
    user = {"n": request["n"][:1]}
    ranked = scorer.rank(user, {"x": request["x"]})
    same = scorer.predict({"x": request["x"], "n": np.repeat(user["n"], 4, axis=0)})
    np.testing.assert_equal(ranked, same)


def test_categories_of_the_user_are_those_of_all_candidates(folders):
    scorer = core.Scorer.load(folders("hash_bag"))
    rows = EXAMPLES["hash_bag"].request(3, seed=3)
    np.testing.assert_array_equal(scorer.rank({}, rows), scorer.predict(rows))
    example = scorer_programs.Example()
    x, y = example.number("x", 2, kind="string"), example.number("y", 1)
    keys = [[1, 2], [3, 4]]
    example.step("hash_strings", [x], ["#h"], kind="strings", keys=keys)
    example.step("outputs", ["#h", y], ["#0"])
    scorer = core.Scorer.load(example.write(folders("hash_bag").parent / "of_user"))
    texts, y = [["a", "b"]], np.float32([[1], [2], [3]])
    np.testing.assert_array_equal(
        scorer.rank({"x": texts}, {"y": y}), scorer.predict({"x": texts * 3, "y": y})
    )


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"a": [2], "b": [3]}, r'the output has 10 numbers for each row, "outputs" has 5'),
        ([{"name": "a", "shape": [5]}] * 2, "has 'a' twice"),
        ([{"name": "a", "shape": [-1]}], "must have names and shapes"),
        ([{"name": 1, "shape": []}], "must have names and shapes"),
        ([], "must be an array of outputs"),
        ([{"name": "a", "shape": [1 << 30, 1 << 30, 1 << 30]}], "must have names and shapes"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(tmp_path, outputs, message):
    if isinstance(outputs, dict):
        outputs = [{"name": n, "shape": s} for n, s in outputs.items()]
    EXAMPLES["outputs"].write(tmp_path)
    file = tmp_path / "scorer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"outputs": outputs}))
    with pytest.raises(ValueError, match=message):
        core.Scorer.load(tmp_path)


def test_a_model_with_other_outputs_does_not_replace_a_scorer(folders, tmp_path):
    scorer = core.Scorer.load(folders("outputs"))
    other = scorer_programs.examples()["outputs"]
    other.outputs = {"part": [2], "matrix": [6], "ids": [2]}
    with pytest.raises(ValueError, match="must have the outputs of the old one"):
        scorer.reload(other.write(tmp_path / "other"))
    scorer.reload(folders("outputs"))


def test_strings_of_another_shape_are_refused(folders):
    scorer = core.Scorer.load(folders("hash_strings_string"))
    for x in (["a", "b", "c"], [["a", "b"]], "a"):
        with pytest.raises(ValueError, match=r"x must have the shape \('B', 3\), got"):
            scorer.predict({"x": x})
    with pytest.raises(ValueError, match="must hold strings, integers or bools, got float64"):
        scorer.predict({"x": np.zeros((1, 3))})


def test_folders_without_shapes_are_read(tmp_path):
    for name in ("dense_of_vectors", "conversions", "cross_0.5"):
        folder = EXAMPLES[name].write(tmp_path / name, shapes=False)
        assert_equals_reference(folder, EXAMPLES[name])


LEVELS = """
import sys, numpy as np
from tests.core import scorer_programs
from twml_ops import core
made = {}
for name, example in scorer_programs.examples().items():
    folder = example.write(__import__("pathlib").Path(sys.argv[1]) / name)
    made[name] = scorer_programs.side_by_side(core.Scorer.load(folder).predict(example.request(7)))
np.savez(sys.argv[2], level=core.simd_level(), **made)
"""


@pytest.mark.parametrize("level", ["baseline", "avx2", "avx512"])
def test_all_simd_levels_equal_the_reference(folders, tmp_path, level):
    environment = {**os.environ, "TWML_OPS_SIMD": level, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", LEVELS, tmp_path / "programs", tmp_path / "out.npz"]
    subprocess.run(command, env=environment, check=True)
    with np.load(tmp_path / "out.npz") as made:
        if str(made["level"]) != level:
            pytest.skip(f"this CPU has no {level}")
        for name, example in EXAMPLES.items():
            reference = NumPyScorer.load(folders(name))
            with np.errstate(all="ignore"):
                want = scorer_programs.side_by_side(reference.predict(example.request(7)))
            np.testing.assert_allclose(made[name], want, **TOLERANCE, err_msg=name)


def test_threads_that_share_a_scorer_get_what_one_gets(folders):
    name = "percentile_discretize_drop"
    scorer = core.Scorer.load(folders(name))
    requests = [EXAMPLES[name].request(1 + seed % 60, seed=seed) for seed in range(120)]
    alone = [scorer.predict(r, num_threads=1) for r in requests]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(scorer.predict, requests))
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_array_equal(a, b)


def test_requests_during_a_reload_get_the_old_or_the_new_answer(tmp_path):
    old, new = (scorer_programs.Example() for _ in range(2))
    for i, example in enumerate((old, new)):
        batch = example.batch("x", 50)
        example.step("sparse_linear", batch, ["#0"], scorer_programs.tables(50, 8, "float32", i))
    folders = [e.write(tmp_path / str(i)) for i, e in enumerate((old, new))]
    request = old.request(40)
    answers = [core.Scorer.load(f).predict(request) for f in folders]
    scorer = core.Scorer.load(folders[0])
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(scorer.predict, request) for _ in range(200)]
        for i in range(100):
            scorer.reload(folders[(i + 1) % 2])
            running += [pool.submit(scorer.predict, request) for _ in range(3)]
        got = [f.result() for f in running]
    assert all(any(np.array_equal(g, a) for a in answers) for g in got)
    np.testing.assert_array_equal(scorer.predict(request), answers[0])


def test_a_model_with_other_inputs_does_not_replace_a_scorer(folders, tmp_path):
    scorer = core.Scorer.load(folders("dense_16_5"))
    request = EXAMPLES["dense_16_5"].request(3)
    want = scorer.predict(request)
    for other, message in (("add", "the 1 inputs of the old"), ("dense_4_5", "'x' became 'x' or")):
        with pytest.raises(ValueError, match=message):
            scorer.reload(folders(other))
    with pytest.raises(ValueError, match="must have 5 numbers for each row.*got 16"):
        scorer.reload(folders("dense_16_16"))
    with pytest.raises(FileNotFoundError):
        scorer.reload(tmp_path / "nowhere")
    np.testing.assert_array_equal(scorer.predict(request), want)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_ids": [99] * 3}, r"x_ids\[0\] = 99 is out of range \[0, 50\)"),
        ({"x_ids": [0, 1, -1]}, r"x_ids\[2\] = -1 is out of range"),
        ({"x_row_splits": [0, 5, 3]}, "x_row_splits.*must be non-decreasing"),
        ({"x_row_splits": [1, 2, 3]}, r"row_splits\[0\] must be 0, got 1"),
        ({"x_row_splits": [0, 2, 4]}, r"row_splits\[2\] must be the number of entries 3, got 4"),
        ({"x_row_splits": []}, "must not be empty"),
        ({"x_values": [1.0]}, r"must be the number of entries 1, got 3"),
        ({"x_values": ["a"] * 3}, "x_values must be an array of real numbers"),
        ({"x_ids": [0.5] * 3}, "x_ids must be an array of integers"),
    ],
)
def test_bad_requests_name_the_array(folders, change, message):
    scorer = core.Scorer.load(folders("sparse_linear_float32_4"))
    request = {"x_ids": [1, 2, 3], "x_values": [1.0, 2.0, 3.0], "x_row_splits": [0, 1, 3]}
    scorer.predict(request)
    with pytest.raises(ValueError, match=message):
        scorer.predict(request | change)


def test_dense_arrays_of_another_shape_are_refused(folders):
    scorer = core.Scorer.load(folders("cross_0.5"))
    request = EXAMPLES["cross_0.5"].request(3)
    with pytest.raises(ValueError, match=r"x1 must have the shape \(B, 6\), got \(3, 5\)"):
        scorer.predict(request | {"x1": np.zeros((3, 5), np.float32)})
    with pytest.raises(ValueError, match="the same number of rows: x0 has 3, x2 has 4"):
        scorer.predict(request | {"x2": np.zeros((4, 6), np.float32)})


# Ranking -----------------------------------------------------------------------------------------


def joined(splits, of_user, own):
    """The entries of rows that have the user's entries, followed by their own."""
    parts = [[of_user, own[begin:end]] for begin, end in itertools.pairwise(splits)]
    return np.concatenate([x for pair in parts for x in pair] or [own])


@pytest.mark.parametrize("user_has", [0, 4])
@pytest.mark.parametrize("rows", [0, 1, 7, 200])
def test_a_ranking_request_equals_the_rows_with_the_entries_of_the_user(tmp_path, user_has, rows):
    """Sparse batches through every step on entries, a dense input of the user, and one of rows."""
    example = scorer_programs.Example()
    ids, values, splits = example.batch("x", 40)
    norm = {"max_abs": np.abs(np.random.default_rng(1).normal(size=40)).astype(np.float32) + 0.1}
    options = {"epsilon": 1e-6, "nonfinite": "error"}
    example.step("max_norm", [ids, values, splits], ["#v"], norm, **options)
    example.step("hash_ids", [ids], ["#h"], bits=5)
    tables = [scorer_programs.tables(n, 6, "float32", n) for n in (40, 32)]
    bias = {"bias": np.arange(6, dtype=np.float32)}
    example.step("sparse_linear", [ids, "#v", splits], ["#1"], tables[0] | bias)
    example.step("activation", ["#1"], ["#2"], name="tanh")
    example.step("sparse_linear", ["#h", None, splits], ["#3"], tables[1])
    mine, yours = example.number("of_user", 6), example.number("of_row", 6)
    example.step("dense", [mine], ["#4"], {"kernel": np.eye(6, dtype=np.float32) * 2})
    example.step("add", ["#2", "#3", "#4", yours], ["#5"])
    example.step("concatenate", ["#5", mine], ["#6"], axis=-1)
    scorer = core.Scorer.load(example.write(tmp_path / "model"))
    request, user = example.request(rows, seed=3), example.request(1, seed=4)
    user_ids = user[ids][:0] if user_has == 0 else np.array([1, 7, 39, 7])
    user_values = np.linspace(-1, 1, len(user_ids), dtype=np.float32)
    whole = dict(request)
    whole[ids] = joined(request[splits], user_ids, request[ids])
    whole[values] = joined(request[splits], user_values, request[values])
    whole[splits] = request[splits] + len(user_ids) * np.arange(rows + 1)
    whole["of_user"] = np.repeat(user["of_user"], rows, axis=0)
    want = scorer.predict(whole)
    del request["of_user"]
    given = {"of_user": user["of_user"]}
    if user_has:
        given |= {ids: user_ids, values: user_values, splits: np.array([0, len(user_ids)])}
    for threads in (1, 2, 8):
        got = scorer.rank(given, request, num_threads=threads)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="'of_user' must be given for the user or for the rows"):
        scorer.rank(given, request | {"of_user": whole["of_user"]})
    with pytest.raises(ValueError, match="'of_row' is missing"):
        scorer.rank(given, {k: v for k, v in request.items() if k != "of_row"})
    with pytest.raises(ValueError, match="the user must have 1 row, got 2"):
        scorer.rank({"of_user": np.zeros((2, 6), np.float32)}, request)


@pytest.mark.parametrize("of_user", [["x"], ["bag0"], ["x", "bag0"], ["bag1"]])
def test_bags_belong_to_the_user_or_to_the_candidates(folders, of_user):
    name = "field_embedding_float32_None"
    example, scorer = EXAMPLES[name], core.Scorer.load(folders(name))
    request, one = example.request(9, seed=1), example.request(1, seed=2)
    user = {k: v for k, v in one.items() if k.split("_")[0] in of_user}
    candidates = {k: v for k, v in request.items() if k not in user}
    whole = dict(candidates)
    for key, array in user.items():
        if key.endswith("row_splits"):
            whole[key] = np.arange(10) * array[-1]
        else:
            whole[key] = np.concatenate([array] * 9)
    got = scorer.rank(user, candidates)
    np.testing.assert_allclose(got, scorer.predict(whole), rtol=1e-6, atol=1e-6)
    both = candidates | {k: request[k] for k in user}
    with pytest.raises(ValueError, match="for the user or for the rows, not for both"):
        scorer.rank(user, both)


def edited(folders, tmp_path, name, edit):
    """A copy of an example's folder with a changed program."""
    shutil.copytree(folders(name), tmp_path / "edited")
    path = tmp_path / "edited" / "scorer.json"
    program = json.loads(path.read_text())
    edit(program)
    path.write_text(json.dumps(program))
    return tmp_path / "edited"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda p: p.update(format=4), "has the format 4, this version reads 1 to 3"),
        (lambda p: p.pop("format"), "must have the number of a format"),
        (lambda p: p["steps"][0].update(op="conv"), r"step 0 \(conv\) is an operation that this"),
        (lambda p: p["steps"][0].update({"in": ["y"]}), "reads 'y', which is no input"),
        (lambda p: p["steps"][0].update({"in": []}), "must have 1 inputs, got 0"),
        (lambda p: p["steps"][0].update({"out": ["x"]}), "'x' is written twice"),
        (lambda p: p["steps"][0]["arrays"].update(kernel="../x.npy"), "the name of a file in"),
        (lambda p: p["steps"][0]["arrays"].update(kernel="gone.npy"), "cannot be opened"),
        (lambda p: p["steps"][0]["arrays"].pop("kernel"), 'must have "kernel"'),
        (lambda p: p["shapes"].update(x=[4]), "must have 16 numbers on its last axis, got 4"),
        (lambda p: p["shapes"].update(x=[-4]), "must be a list of sizes"),
        (lambda p: p.update(output="#9"), "must be a dense array, got '#9'"),
        (lambda p: p["inputs"].update(x="ids"), "must be a dense array, got ids"),
        (lambda p: p["inputs"].update(x="texts"), "row_splits, dense, strings or bag"),
    ],
)
def test_programs_that_make_no_sense_are_refused(folders, tmp_path, edit, message):
    folder = edited(folders, tmp_path, "dense_16_5", edit)
    with pytest.raises(ValueError, match=message):
        core.Scorer.load(folder)


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        ("combine_vectors_5_3_8", lambda p: p["shapes"].update(x=[4, 8]), "5 vectors, got 4"),
        ("combine_vectors_5_3_8", lambda p: p["shapes"].update(x=[5]), r"shape \[B, any, any\]"),
        ("patches_6_5_3", lambda p: attributes(p)["patches"].update(size=0), r"size in \[1, 4096"),
        ("patches_6_5_3", lambda p: attributes(p)["patches"].update(size=1 << 40), "size in"),
        ("patches_6_5_3", lambda p: attributes(p)["patches"].update(size=4096), "16777216 numbers"),
        ("patches_6_5_3", lambda p: p["shapes"].update(x=[30]), r"shape \[B, any, any\]"),
        ("self_attention_5_8_2", lambda p: of_heads(p, 0), "num_heads of at least 1"),
        ("self_attention_5_8_2", lambda p: of_heads(p, 3), "must divide the width 8, got 3"),
        ("self_attention_5_8_2", lambda p: p["shapes"].update(x=[4097, 8]), "4096 vectors, got"),
        ("self_attention_5_8_2", lambda p: p["steps"][3]["in"].pop(), "must have 3 inputs, got 2"),
        ("self_attention_5_8_2", lambda p: p["steps"][3].update({"in": ["x", "x", "y"]}), "'y'"),
        ("logit", lambda p: p["steps"][1].update({"in": []}), "must have 1 inputs, got 0"),
    ],
)
def test_steps_on_vectors_that_do_not_fit_are_refused(folders, tmp_path, name, edit, message):
    with pytest.raises(ValueError, match=message):
        core.Scorer.load(edited(folders, tmp_path, name, edit))


@pytest.mark.parametrize(
    ("op", "options"),
    [("layer_normalization", {"epsilon": 1.0}), ("activation", {"name": "softmax"})],
)
def test_steps_on_the_last_axis_refuse_numbers_without_one(tmp_path, op, options):
    example = scorer_programs.Example()
    example.step("reshape", [example.number("x", 1)], ["#r"], shape=[])
    example.step(op, ["#r"], ["#0"], **options)
    with pytest.raises(ValueError, match="'#r' must have at least 2 dimensions"):
        core.Scorer.load(example.write(tmp_path))


def attributes(program):
    return {step["op"]: step["attributes"] for step in program["steps"]}


def of_heads(program, heads):
    attributes(program)["self_attention"].update(num_heads=heads)


@pytest.mark.parametrize("op", ["add", "multiply", "average"])
@pytest.mark.parametrize("shapes", [((3,), (4,)), ((2, 3), (3,)), ((3,), (1,), (4,))])
def test_what_is_merged_has_shapes_that_fit_together(tmp_path, op, shapes):
    example = scorer_programs.Example()
    parts = [example.number(f"x{i}", *shape) for i, shape in enumerate(shapes)]
    example.step(op, parts, ["#0"])
    with pytest.raises(ValueError, match=r"'x\d' and 'x0' must have shapes that fit together"):
        core.Scorer.load(example.write(tmp_path))


def test_queries_keys_and_values_have_one_shape(tmp_path):
    example = scorer_programs.Example()
    parts = [example.number(name, 2, width) for name, width in (("q", 4), ("k", 4), ("v", 2))]
    example.step("self_attention", parts, ["#0"], num_heads=2)
    with pytest.raises(ValueError, match="'v' must have the shape of 'q'"):
        core.Scorer.load(example.write(tmp_path))


@pytest.mark.parametrize(("op", "row"), [("dense", (0,)), ("combine_vectors", (0, 3))])
@pytest.mark.parametrize("shape", [(0, 1 << 40), (1 << 40, 0)])
def test_empty_kernels_of_any_shape_are_refused(tmp_path, op, row, shape):
    example = scorer_programs.Example()
    x = example.number("x", *row)
    example.step(op, [x], ["#0"], {"kernel": np.empty(shape, np.float32)})
    with pytest.raises(ValueError, match="must have"):
        core.Scorer.load(example.write(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a value"),
        ('{"format": 1', "expected ',' or '}'"),
        ('{"format": 1, "format": 1}', "distinct names"),
        ('{"format": 01}', "expected a value"),
        ('{"format": 99999999999999999999}', "an integer of 64 bits"),
        ('{"format": "\\ud800"}', "a pair of surrogates"),
        ("[" * 100, "at most 32 nested values"),
        ("[]", "must be an object"),
        ('{"format": 1} x', "expected the end of the text"),
        ('{"format": 1.5x}', "expected ',' or '}'"),
        ('{"format": 1,5}', "expected the name of a member"),
        ('{"format": 1e400}', "a number in the range of a double"),
        ('{"b": 1, "format": 1, "a": 2, "b": 3}', "distinct names, got 'b' twice"),
    ],
)
def test_texts_that_are_no_program_are_refused(tmp_path, text, message):
    (tmp_path / "scorer.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        core.Scorer.load(tmp_path)


# Numbers that are not an integer in the C locale alone: with a comma, 0.5 is read as 0.
LOCALES = ["de_DE.UTF-8", "de_DE", "fr_FR.UTF-8", "fr_FR", "ru_RU.UTF-8", "nl_NL.UTF-8"]


@pytest.fixture
def decimal_comma(tmp_path):
    """Environment variables of a process with a locale in which numbers have a decimal comma."""
    script = (
        "import locale, sys\n"
        f"for name in {LOCALES}:\n"
        "    try: locale.setlocale(locale.LC_ALL, name)\n"
        "    except locale.Error: continue\n"
        "    if locale.localeconv()['decimal_point'] == ',': sys.exit(print(name))\n"
    )

    def found(environment):
        command = [sys.executable, "-c", script]
        return subprocess.run(command, env=environment, capture_output=True, text=True).stdout

    environment = dict(os.environ)
    if not (name := found(environment).strip()) and shutil.which("localedef"):
        command = ["localedef", "-i", "de_DE", "-f", "UTF-8", str(tmp_path / "de_DE.UTF-8")]
        subprocess.run(command, capture_output=True, check=False)
        environment["LOCPATH"] = str(tmp_path)
        name = found(environment).strip()
    if not name:
        pytest.skip("no locale with a decimal comma is installed or can be made")
    return environment | {"TWML_TEST_LOCALE": name}


def test_the_locale_of_the_program_changes_no_prediction(tmp_path, decimal_comma):
    program = {
        "format": 1,
        "inputs": {"x": "dense"},
        "shapes": {"x": [2]},
        "steps": [
            {
                "op": "cross",
                "in": ["x", "x", "x"],
                "out": ["y"],
                "arrays": {},
                "attributes": {"diag_scale": 0.5},
            }
        ],
        "output": "y",
    }
    (tmp_path / "scorer.json").write_text(json.dumps(program))
    script = (
        "import locale, os, sys, numpy as np\n"
        "from twml_ops import core\n"
        "locale.setlocale(locale.LC_ALL, os.environ['TWML_TEST_LOCALE'])\n"
        "scorer = core.Scorer.load(sys.argv[1])\n"
        "print(scorer.predict({'x': np.array([[1, 2]], np.float32)}).tolist())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env=decimal_comma,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [[2.5, 8.0]]


@pytest.mark.parametrize("shape", [(0, 1 << 60), (1 << 60, 0), (1 << 24, 0, 1 << 24), (-1,)])
@pytest.mark.parametrize("op", ["dot_interaction", "factorization_machine", "patches"])
def test_a_huge_size_is_refused_in_folders_and_in_requests(tmp_path, op, shape):
    attributes = {"pool": True, "size": 2}
    program = {
        "format": 1,
        "inputs": {"x": "dense"},
        "steps": [{"op": op, "in": ["x"], "out": ["y"], "arrays": {}, "attributes": attributes}],
        "output": "y",
    }
    path = tmp_path / "scorer.json"
    path.write_text(json.dumps(program))
    scorer = core.Scorer.load(tmp_path)
    if min(shape) == 0 and len(shape) == 2:
        with pytest.raises(ValueError, match="a row of 'x' must have at most 16777216 numbers"):
            scorer.predict({"x": np.zeros((1, *shape), np.float32)})
    path.write_text(json.dumps(program | {"shapes": {"x": list(shape)}}))
    with pytest.raises(ValueError, match="the shape of the input 'x' must be a list of sizes"):
        core.Scorer.load(tmp_path)


@pytest.mark.parametrize("single", [-1, -2, -(1 << 40), (1 << 24) + 1, (1 << 63) - 1])
@pytest.mark.parametrize("name", ["category_rows_bags", "learned_hash_bags"])
def test_a_number_of_single_fields_out_of_range_is_refused(folders, tmp_path, name, single):
    def edit(program):
        for step in program["steps"]:
            if step["op"] in ("category_rows", "learned_hash"):
                step["attributes"]["single"] = single

    with pytest.raises(ValueError, match=r"must have a single in \[0, 16777216\]"):
        core.Scorer.load(edited(folders, tmp_path, name, edit))


@pytest.mark.parametrize(
    "shape", [b"(2x,)", b"(2 8)", b"(1.5,)", b"(0, 1152921504606846976)", b"(-1,)", b"(\xff,)"]
)
def test_sizes_of_arrays_are_read_to_their_end(folders, tmp_path, shape):
    folder = edited(folders, tmp_path, "dense_16_5", lambda program: program.pop("checksums", None))
    [file] = folder.glob("*kernel.npy")
    content = file.read_bytes()
    start = content.index(b"{")
    end = content.index(b"\n") + 1
    header = re.sub(rb"\(\d.*?\)", lambda _: shape, content[start:end]).rstrip()
    file.write_bytes(content[:start] + header.ljust(end - start - 1) + b"\n" + content[end:])
    with pytest.raises(ValueError, match="whose type and shape a scorer reads, got {'descr'"):
        core.Scorer.load(folder)


def test_models_of_many_inputs_and_steps_are_read_and_answer(tmp_path):
    """In a time that the square of their number would not permit."""
    bags = 4000
    np.save(tmp_path / "t.npy", np.ones((8, 1), np.float32))
    inputs, steps = {}, []
    for b in range(bags):
        inputs |= {f"i{b}": "ids", f"s{b}": "row_splits"}
        steps.append(
            {
                "op": "sparse_linear",
                "in": [f"i{b}", None, f"s{b}"],
                "out": [f"y{b}"],
                "arrays": {"table": "t.npy"},
                "attributes": {},
            }
        )
    names = [f"y{b}" for b in range(bags)]
    steps.append(
        {"op": "concatenate", "in": names, "out": ["y"], "arrays": {}, "attributes": {"axis": 1}}
    )
    program = {"format": 1, "inputs": inputs, "steps": steps, "output": "y"}
    (tmp_path / "scorer.json").write_text(
        json.dumps(program | {f"u{n}": n for n in range(200_000)})
    )
    request = {}
    for b in range(bags):
        request |= {f"i{b}": np.zeros(2, np.int64), f"s{b}": np.array([0, 2])}
    np.testing.assert_array_equal(
        core.Scorer.load(tmp_path).predict(request), np.full((1, bags), 2)
    )


DAMAGED = ["percentile_discretize", "field_embedding_int8_None", "boosted_trees_optional"]
DAMAGED += ["category_rows_bags", "dense_17_5", "concatenate_vectors", "category_statistics"]
DAMAGED += ["self_attention_5_8_2", "patches_6_5_3", "combine_vectors_5_3_8"]
DAMAGED += ["layer_normalization_8", "logit", "learned_hash_bags"]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.sampled_from(DAMAGED), st.data())
def test_damaged_folders_end_in_an_error_or_an_answer(folders, name, data):
    """Bytes of any file are changed, inserted or cut off."""
    damaged = folders(name).parent / "damaged"
    shutil.rmtree(damaged, ignore_errors=True)
    shutil.copytree(folders(name), damaged)
    files = sorted(damaged.iterdir())
    for _ in range(data.draw(st.integers(1, 3))):
        file = data.draw(st.sampled_from(files))
        content = bytearray(file.read_bytes())
        at = data.draw(st.integers(0, max(0, min(len(content), 400) - 1)))
        kind = data.draw(st.sampled_from(["change", "insert", "cut", "number"]))
        if kind == "change" and content:
            content[at] = data.draw(st.integers(0, 255))
        elif kind == "insert":
            content[at:at] = data.draw(st.binary(max_size=8))
        elif kind == "cut":
            del content[at:]
        else:
            numbers = [b"-1", b"0", b"1099511627776", b"9223372036854775807", b"null", b"[]"]
            digits = [i for i, c in enumerate(content) if chr(c).isdigit()]
            if digits and file.suffix == ".json":
                i = data.draw(st.sampled_from(digits))
                content[i : i + 1] = data.draw(st.sampled_from(numbers))
        file.write_bytes(bytes(content))
    try:
        scorer = core.Scorer.load(damaged)
        scorer.predict(EXAMPLES[name].request(5))
    except (ValueError, MemoryError):
        pass
