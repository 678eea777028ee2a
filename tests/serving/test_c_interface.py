"""The C interface of the scorer, from Python's ctypes and from compiled programs."""

import ctypes
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import twml_ops
from tests.core import scorer_programs
from twml_ops import core

PACKAGE = Path(twml_ops.__file__).parent
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "scorer"
LIBRARY = ctypes.CDLL(str(PACKAGE / "libtwml_ops_scorer.so"))
OK, INVALID, UNREADABLE = 0, 1, 3
MAPPED, MEMORY, FILE = 0, 1, 2


class Input(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("kind", ctypes.c_int32), ("width", ctypes.c_int64))


class Output(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("first", ctypes.c_int64), ("width", ctypes.c_int64))


class Array(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("offsets", ctypes.c_void_p),
        ("num_bytes", ctypes.c_int64),
    )


class Request(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_int32),
        ("num_rows", ctypes.c_int64),
        ("arrays", ctypes.POINTER(Array)),
        ("num_arrays", ctypes.c_int64),
        ("user", ctypes.POINTER(Array)),
        ("threads", ctypes.c_void_p),
        ("parallel_for", ctypes.c_void_p),
        ("pool", ctypes.c_void_p),
    )


class Options(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("storage", ctypes.c_int32),
        ("direct", ctypes.c_int32),
        ("queue_depth", ctypes.c_int32),
        ("cache_bytes", ctypes.c_int64),
        ("sums_cache_bytes", ctypes.c_int64),
        ("least_bytes", ctypes.c_int64),
    )


class Statistics(ctypes.Structure):
    COUNTS = ("entries", "rows", "hits", "misses", "reads", "bytes_read", "bytes_needed")
    COUNTS += ("sum_hits", "sum_misses")
    _fields_ = (("size", ctypes.c_size_t), *((name, ctypes.c_int64) for name in COUNTS))


BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
PARALLEL_FOR = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, BODY, ctypes.c_void_p
)
LIBRARY.twml_ops_threads_new.restype = ctypes.c_void_p
LIBRARY.twml_ops_scorer_num_inputs.restype = ctypes.c_int64
LIBRARY.twml_ops_scorer_output_width.restype = ctypes.c_int64
LIBRARY.twml_ops_scorer_num_outputs.restype = ctypes.c_int64


class CScorer:
    """A scorer of the C interface."""

    def __init__(self, folder, size=None, **options):
        self.error = ctypes.create_string_buffer(256)
        self.handle = ctypes.c_void_p()
        path, handle = str(folder).encode(), ctypes.byref(self.handle)
        if options:
            size = ctypes.sizeof(Options) if size is None else size
            given = ctypes.byref(Options(size=size, **options))
            code = LIBRARY.twml_ops_scorer_open(path, given, handle, self.error, 256)
        else:
            code = LIBRARY.twml_ops_scorer_load(path, handle, self.error, 256)
        if code != OK:
            raise ValueError(self.error.value.decode())

    def close(self):
        LIBRARY.twml_ops_scorer_free(self.handle)

    def inputs(self, kind=0):
        made = []
        for i in range(LIBRARY.twml_ops_scorer_num_inputs(self.handle, kind)):
            described = Input()
            arguments = (self.handle, kind, ctypes.c_int64(i), ctypes.byref(described))
            assert LIBRARY.twml_ops_scorer_input(*arguments) == OK
            made.append((described.name.decode(), described.kind, described.width))
        return made

    def outputs(self):
        made = []
        for i in range(LIBRARY.twml_ops_scorer_num_outputs(self.handle)):
            output = Output()
            arguments = (self.handle, ctypes.c_int64(i), ctypes.byref(output))
            assert LIBRARY.twml_ops_scorer_output(*arguments) == OK
            made.append((output.name.decode(), output.first, output.width))
        return made

    def predict(self, arrays, rows, error_size=256, out_size=None, **options):
        """Arrays in order; strings are pairs of bytes and offsets."""
        made = (Array * len(arrays))()
        for slot, array in zip(made, arrays, strict=True):
            data, offsets = array if isinstance(array, tuple) else (array, None)
            slot.data, slot.size = data.ctypes.data, data.size
            if offsets is not None:
                slot.num_bytes, slot.size = data.size, len(offsets) - 1
                slot.offsets = offsets.ctypes.data
        width = LIBRARY.twml_ops_scorer_output_width(self.handle)
        out = np.zeros((rows, width), np.float32)
        request = Request(num_rows=rows, arrays=made, num_arrays=len(arrays), **options)
        error = ctypes.create_string_buffer(256)
        code = LIBRARY.twml_ops_scorer_predict(
            self.handle,
            ctypes.byref(request),
            out.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_int64(out.size if out_size is None else out_size),
            error,
            ctypes.c_size_t(error_size),
        )
        if code != OK:
            raise (OSError if code == UNREADABLE else ValueError)(error.value.decode())
        return out

    def statistics(self):
        made = Statistics(size=ctypes.sizeof(Statistics))
        arguments = (self.handle, ctypes.byref(made), self.error, ctypes.c_size_t(256))
        assert LIBRARY.twml_ops_scorer_get_statistics(*arguments) == OK
        return {name: getattr(made, name) for name in Statistics.COUNTS}


@pytest.fixture
def example(tmp_path):
    made = scorer_programs.examples()["percentile_discretize_drop"]
    return made, made.write(tmp_path / "model")


@pytest.fixture
def scorer(example):
    made = CScorer(example[1])
    yield made
    made.close()


def ordered(scorer, request):
    return [np.ascontiguousarray(request[name]) for name, _, _ in scorer.inputs()]


def test_inputs_are_described(scorer):
    assert scorer.inputs() == [("x_ids", 4, 0), ("x_row_splits", 6, 0), ("x_values", 5, 0)]
    assert scorer.inputs(1) == []
    assert LIBRARY.twml_ops_scorer_input(scorer.handle, 0, ctypes.c_int64(3), None) == INVALID
    assert LIBRARY.twml_ops_scorer_abi_version() == 1


@pytest.mark.parametrize("rows", [0, 1, 7, 200])
@pytest.mark.parametrize("threads", [1, 2, 8])
def test_predictions_are_those_of_python(example, scorer, rows, threads):
    request = example[0].request(rows)
    want = core.Scorer.load(example[1]).predict(request)
    pool = LIBRARY.twml_ops_threads_new(threads)
    try:
        got = scorer.predict(ordered(scorer, request), rows, threads=pool)
    finally:
        LIBRARY.twml_ops_threads_free(ctypes.c_void_p(pool))
    np.testing.assert_array_equal(got, want)


def test_a_caller_brings_threads_of_its_own(example, scorer):
    request = example[0].request(200)
    ranges = []

    @PARALLEL_FOR
    def parallel_for(_, total, cost, body, context):
        assert cost > 0
        for begin in range(0, total, 70):
            ranges.append((begin, min(begin + 70, total)))
            body(context, *ranges[-1])

    function = ctypes.cast(parallel_for, ctypes.c_void_p)
    got = scorer.predict(ordered(scorer, request), 200, parallel_for=function)
    assert ranges == [(0, 70), (70, 140), (140, 200)]
    np.testing.assert_array_equal(got, scorer.predict(ordered(scorer, request), 200))


def test_callers_share_a_scorer_and_a_pool(example, scorer):
    requests = [example[0].request(1 + i % 90, seed=i) for i in range(60)]
    alone = [scorer.predict(ordered(scorer, r), 1 + i % 90) for i, r in enumerate(requests)]
    pool = LIBRARY.twml_ops_threads_new(3)

    def predict(i):
        return scorer.predict(ordered(scorer, requests[i]), 1 + i % 90, threads=pool)

    with ThreadPoolExecutor(8) as callers:
        together = list(callers.map(predict, range(60)))
    LIBRARY.twml_ops_threads_free(ctypes.c_void_p(pool))
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_array_equal(a, b)


def test_errors_have_a_text_that_fits(example, scorer):
    arrays = ordered(scorer, example[0].request(7))
    with pytest.raises(ValueError, match="out must have 35 floats, 5 for each row, got 3"):
        scorer.predict(arrays, 7, out_size=3)
    with pytest.raises(ValueError, match=r"^out must$"):
        scorer.predict(arrays, 7, out_size=3, error_size=9)
    with pytest.raises(ValueError, match="a request must have 3 arrays, got 2"):
        scorer.predict(arrays[:2], 7)
    with pytest.raises(ValueError, match="'x_row_splits' must have 9 items"):
        scorer.predict(arrays, 8)
    with pytest.raises(ValueError, match="set must be"):
        scorer.predict(arrays, 7, set=5)
    with pytest.raises(ValueError, match="takes no columns"):
        scorer.predict(arrays, 7, set=1)
    with pytest.raises(ValueError, match="cannot be opened"):
        CScorer("/nowhere")


@pytest.mark.parametrize("storage", [MAPPED, MEMORY, FILE])
def test_tables_are_where_the_options_say(example, storage):
    request = example[0].request(20)
    opened = CScorer(example[1], storage=storage, least_bytes=1)
    want = core.Scorer.load(example[1]).predict(request)
    for _ in range(2):
        np.testing.assert_array_equal(opened.predict(ordered(opened, request), 20), want)
    found = opened.statistics()
    opened.close()
    assert (found["rows"] > 0) == (storage == FILE)
    assert found["hits"] + found["misses"] == found["rows"]


def test_an_unreadable_file_has_a_code_of_its_own(example):
    opened = CScorer(example[1], storage=FILE, least_bytes=1)
    table = next(example[1].glob("*table.npy"))
    os.truncate(table, 200)
    with pytest.raises(OSError, match="table.npy"):
        opened.predict(ordered(opened, example[0].request(20)), 20)
    opened.close()


def test_options_are_checked(example):
    with pytest.raises(ValueError, match=r"size must be sizeof\(twml_ops_scorer_options\), got 0"):
        CScorer(example[1], size=0, storage=FILE)
    with pytest.raises(ValueError, match="storage must be TWML_OPS_TABLES_MAPPED"):
        CScorer(example[1], storage=3)
    with pytest.raises(ValueError, match="direct needs tables in files"):
        CScorer(example[1], storage=MAPPED, direct=1)
    # A program with an earlier header has fewer options; unknown ones of a later one must be 0.
    CScorer(example[1], size=16, storage=FILE, cache_bytes=-1).close()
    buffer = (ctypes.c_char * 256)()
    Options.from_buffer(buffer).size = 256
    arguments = (str(example[1]).encode(), buffer)
    handle, error = ctypes.c_void_p(), ctypes.create_string_buffer(256)
    rest = (ctypes.byref(handle), error, 256)
    assert LIBRARY.twml_ops_scorer_open(*arguments, *rest) == OK
    LIBRARY.twml_ops_scorer_free(handle)
    buffer[200] = 1
    assert LIBRARY.twml_ops_scorer_open(*arguments, *rest) == INVALID
    assert b"has an option that this library does not know" in error.value


def test_a_folder_is_reloaded(example, scorer, tmp_path):
    request = example[0].request(9)
    before = scorer.predict(ordered(scorer, request), 9)
    other = scorer_programs.examples()["percentile_discretize_drop"]
    table = other.steps[1][3]["table"]
    other.steps[1][3]["table"] = table * 2
    error = ctypes.create_string_buffer(256)
    folder = str(other.write(tmp_path / "new")).encode()
    assert LIBRARY.twml_ops_scorer_reload(scorer.handle, folder, error, 256) == OK
    np.testing.assert_array_equal(scorer.predict(ordered(scorer, request), 9), before * 2)
    assert LIBRARY.twml_ops_scorer_reload(scorer.handle, b"/nowhere", error, 256) == INVALID
    np.testing.assert_array_equal(scorer.predict(ordered(scorer, request), 9), before * 2)


# Compiled programs -------------------------------------------------------------------------------


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def needs(*tools):
    missing = [t for t in tools if shutil.which(t) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed")


@pytest.fixture
def served(tmp_path):
    """A model that takes what the examples give."""
    example = scorer_programs.Example()
    ids, values, splits = "x_ids", "x_values", "x_row_splits"
    example.inputs = {ids: "ids", values: "values", splits: "row_splits"}
    table = scorer_programs.tables(20, 1, "float32")
    example.step("sparse_linear", [ids, values, splits], ["#0"], table)
    folder = example.write(tmp_path / "served")
    return folder, core.Scorer.load(folder).predict([3, 14, 15], [1.0, 2.0, 3.0], [0, 2, 3])[:, 0]


def assert_prints(text, want):
    got = [float(line) for line in text.splitlines() if " " not in line]
    np.testing.assert_allclose(got, want, rtol=1e-7)


@needs("gcc", "pkg-config")
def test_a_program_in_c99_scores(served, tmp_path):
    environment = {**os.environ, "PKG_CONFIG_PATH": str(PACKAGE / "pkgconfig")}
    flags = run(["pkg-config", "--cflags", "--libs", "twml_ops_scorer"], env=environment).split()
    strict = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]
    run(["gcc", *strict, EXAMPLES / "score.c", "-o", tmp_path / "score", *flags])
    text = run([tmp_path / "score", served[0]])
    assert text.startswith("x_ids kind 4 width 0\n")
    assert_prints(text, served[1])
    failed = subprocess.run([tmp_path / "score", tmp_path], capture_output=True, check=False)
    assert failed.returncode == 1
    assert b"scorer.json cannot be opened" in failed.stderr


@needs("gcc", "pkg-config")
def test_a_program_in_c99_ranks_with_several_outputs(tmp_path):
    example = scorer_programs.Example()
    ids, values, splits = example.batch("x", 100, values=False)
    for i, output in enumerate(("click", "sale")):
        table = scorer_programs.tables(100, i + 1, "float32")
        example.step("sparse_linear", [ids, values, splits], [f"#{i}"], table)
        example.outputs[output] = [i + 1]
    example.step("outputs", ["#0", "#1"], ["#2"])
    folder = example.write(tmp_path / "served")
    environment = {**os.environ, "PKG_CONFIG_PATH": str(PACKAGE / "pkgconfig")}
    flags = run(["pkg-config", "--cflags", "--libs", "twml_ops_scorer"], env=environment).split()
    strict = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]
    run(["gcc", *strict, EXAMPLES / "rank.c", "-o", tmp_path / "rank", *flags])
    lines = [line.split() for line in run([tmp_path / "rank", folder]).splitlines()]
    assert [line[::2] for line in lines] == [["click", "sale"]] * 3
    want = core.Scorer.load(folder).rank(
        {ids: [3], splits: [0, 1]}, {ids: [15, 92, 65], splits: [0, 1, 1, 3]}
    )
    got = np.array([line[1::2] for line in lines], np.float32)
    first = np.stack([want["click"][:, 0], want["sale"][:, 0]], axis=1)
    np.testing.assert_allclose(got, first, rtol=1e-7)


@needs("cmake", "g++")
def test_a_program_in_cpp_finds_the_package(served, tmp_path):
    options = [f"-Dtwml_ops_scorer_DIR={PACKAGE / 'cmake'}", "-DCMAKE_CXX_COMPILER=g++"]
    run(["cmake", "-S", EXAMPLES, "-B", tmp_path / "build", *options])
    run(["cmake", "--build", tmp_path / "build"])
    assert_prints(run([tmp_path / "build" / "score", served[0]]), served[1])


@needs("rustc")
def test_a_program_in_rust_scores(served, tmp_path):
    flags = ["-L", PACKAGE, "-C", f"link-arg=-Wl,-rpath,{PACKAGE}", "-o", tmp_path / "score"]
    run(["rustc", EXAMPLES / "score.rs", *flags])
    assert_prints(run([tmp_path / "score", served[0]]), served[1])


def test_the_library_exports_its_functions_only():
    if sys.platform != "linux" or shutil.which("nm") is None:
        pytest.skip("nm is not installed")
    symbols = run(["nm", "-D", "--defined-only", PACKAGE / "libtwml_ops_scorer.so"]).split("\n")
    names = [line.split()[-1] for line in symbols if " T " in line]
    assert names
    assert all(name.startswith("twml_ops_") for name in names)


def test_outputs_are_columns_with_names(tmp_path):
    example = scorer_programs.examples()["outputs"]
    scorer = CScorer(example.write(tmp_path / "several"))
    assert scorer.outputs() == [("part", 0, 2), ("matrix", 2, 6), ("ids", 8, 2)]
    request = example.request(5)
    got = scorer.predict([request["x"], request["n"]], 5)
    want = core.Scorer.load(tmp_path / "several").predict(request)
    for name, first, width in scorer.outputs():
        columns = got[:, first : first + width]
        np.testing.assert_array_equal(columns, want[name].reshape(5, -1))
    for i in (-1, 3):
        code = LIBRARY.twml_ops_scorer_output(
            scorer.handle, ctypes.c_int64(i), ctypes.byref(Output())
        )
        assert code == INVALID
    assert LIBRARY.twml_ops_scorer_output(scorer.handle, ctypes.c_int64(0), None) == INVALID
    scorer.close()
    assert LIBRARY.twml_ops_scorer_num_outputs(None) == -1
    one = CScorer(scorer_programs.examples()["mean"].write(tmp_path / "one"))
    assert one.outputs() == [("output", 0, 5)]
    one.close()


def test_strings_have_a_width(tmp_path):
    example = scorer_programs.examples()["hash_strings_string"]
    folder = example.write(tmp_path)
    scorer = CScorer(folder)
    assert scorer.inputs() == [("x", 3, 3)]
    texts = [b"a", b"", b"bc", b"d", b"e", b"f"]
    data = np.frombuffer(b"".join(texts), np.uint8)
    offsets = np.cumsum([0, *map(len, texts)])
    got = scorer.predict([(data, offsets)], 2)
    want = core.Scorer.load(folder).predict({"x": np.array(texts, object).reshape(2, 3)})
    np.testing.assert_array_equal(got, want)
    with pytest.raises(ValueError, match="must have 9 strings, 3 for each row, got 6"):
        scorer.predict([(data, offsets)], 3)
    scorer.close()
