"""Scorers with tables in files or in memory answer as those with mapped tables, bit for bit."""

import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core import scorer_programs
from twml_ops import _core, core
from twml_ops.export.array_files import save_array
from twml_ops.export.scorer_files import write_scorer

EXAMPLES = {
    name: example
    for name, example in scorer_programs.examples().items()
    if any("table" in step[3] for step in example.steps)
}
LEAST = {"least_bytes": 1}
WAYS = {
    "memory": {"storage": "memory"},
    "file": {"storage": "file", **LEAST},
    "direct": {"storage": "file", "direct": True, **LEAST},
    "small cache": {"storage": "file", "cache_bytes": 0, "queue_depth": 1, **LEAST},
    "sums": {"storage": "file", "sums_cache_bytes": 1 << 16, **LEAST},
}
IDS = 5000


def write_table(folder, form="float32", rows=IDS, width=16, seed=0, base=None, edit=None):
    """A model whose output is the sum of the rows of its table."""
    example = scorer_programs.Example()
    arrays = scorer_programs.tables(rows, width, form, seed)
    if edit is not None:
        edit(arrays["table"])
    attributes = scorer_programs.row_format(form, width)
    batch = example.batch("x", rows)
    step = {
        "op": "sparse_linear",
        "in": batch,
        "out": ["#0"],
        "arrays": {key: f"000_{key}.npy" for key in arrays},
        "attributes": attributes,
    }
    program = {"inputs": example.inputs, "steps": [step], "output": "#0"}
    write_scorer(folder, program, {f"000_{k}.npy": a for k, a in arrays.items()}, base)
    return folder


def request_of(lists, seed=0):
    ids = np.concatenate([*lists, []]).astype(np.int64)
    rng = np.random.default_rng(seed)
    return {
        "x_ids": ids,
        "x_values": rng.normal(size=len(ids)).astype(np.float32),
        "x_row_splits": np.cumsum([0, *map(len, lists)]),
    }


def random_lists(seed, rows=40, ids=IDS):
    rng = np.random.default_rng(seed)
    return [rng.zipf(1.3, rng.integers(0, 30)) % ids for _ in range(rows)]


def same_bits(a, b):
    assert a.tobytes() == b.tobytes()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_table(tmp_path_factory.mktemp("storage") / "model")


FORKS = """
import os, signal, sys, threading
import numpy as np
from twml_ops import _core, core

folder, io_uring = sys.argv[1], sys.argv[2] == "io_uring"
options = {"cache_bytes": 1 << 14, "sums_cache_bytes": 1 << 12, "least_bytes": 1}
scorer = core.Scorer.load(folder, storage="file", **options)
expected = core.Scorer.load(folder, storage="memory")
if not io_uring:
    scorer = _core.NativeScorer(folder, storage="file", use_io_uring=False, **options)

def right(seed, count):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        lists = [rng.integers(0, 5000, rng.integers(0, 20)) for _ in range(64)]
        ids = np.concatenate(lists).astype(np.int64)
        values = rng.normal(size=len(ids)).astype(np.float32)
        splits = np.cumsum([0, *map(len, lists)])
        request = {"x_ids": ids, "x_values": values, "x_row_splits": splits}
        if np.any(scorer.predict(request) != expected.predict(request)):
            return False
    return True

right(0, 1)  # all modules are imported; Python's import lock would stay locked in a child
ends = threading.Event()
def work(seed):
    while not ends.is_set():
        right(seed, 1)
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
for thread in threads:
    thread.start()
children = []
for number in range(6):
    child = os.fork()
    if child == 0:
        signal.alarm(300)  # a child that hangs is ended by the signal
        os._exit(0 if right(number, 10) else 1)
    children.append(child)
codes = [os.waitpid(child, 0)[1] for child in children]
ends.set()
for thread in threads:
    thread.join()
print(codes, right(99, 10))
"""


@pytest.mark.parametrize("way", ["io_uring", "threads"])
def test_children_of_a_process_that_answers_answer_too(model, way):
    """The start method fork of multiprocessing, and gunicorn with preload, do the same."""
    command = [sys.executable, "-c", FORKS, str(model), way]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "[0, 0, 0, 0, 0, 0] True\n", done.stderr


# Answers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_step_with_a_table_has_the_bits_of_mapped_tables(tmp_path, name, way):
    if "scaled_int8" in name and WAYS[way]["storage"] == "file":
        return  # see test_int8_tables_with_scales_of_their_own_stay_in_memory
    example = EXAMPLES[name]
    folder = example.write(tmp_path / "model")
    mapped, other = core.Scorer.load(folder), core.Scorer.load(folder, **WAYS[way])
    for rows, threads in itertools.product((1, 70), (1, 3)):
        request = example.request(rows, seed=rows)
        want = mapped.predict(request)
        for _ in range(2):  # the second time rows and sums come from the caches
            same_bits(other.predict(request, num_threads=threads), want)
    assert (other.statistics.tables > 0) == (WAYS[way]["storage"] == "file")


@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8", "int4"])
@pytest.mark.parametrize("direct", [False, True])
def test_requests_of_many_rows_have_the_bits_of_mapped_tables(tmp_path, form, direct):
    folder = write_table(tmp_path / "model", form)
    mapped = core.Scorer.load(folder)
    other = core.Scorer.load(folder, storage="file", direct=direct, cache_bytes=1 << 15, **LEAST)
    request = request_of(random_lists(1, rows=1100))
    for threads in (1, 2, 8):
        same_bits(other.predict(request, num_threads=threads), mapped.predict(request))


def test_without_io_uring_threads_read(model):
    other = core.Scorer(_core.NativeScorer(str(model), storage="file", use_io_uring=False, **LEAST))
    assert not other.statistics.io_uring
    request = request_of(random_lists(2))
    same_bits(other.predict(request), core.Scorer.load(model).predict(request))


@pytest.mark.parametrize("user_has", [[], [3, 3, 4999]])
@pytest.mark.parametrize("way", WAYS)
def test_ranking_requests_have_the_bits_of_mapped_tables(model, way, user_has):
    user, candidates = request_of([user_has]), request_of(random_lists(3, rows=70), seed=1)
    other = core.Scorer.load(model, **WAYS[way])
    for threads in (1, 4):
        same_bits(
            other.rank(user, candidates, num_threads=threads),
            core.Scorer.load(model).rank(user, candidates),
        )


def test_callers_at_the_same_time_share_the_caches(model):
    """The caches are smaller than what one caller needs, so that rows leave them all the time."""
    mapped = core.Scorer.load(model)
    other = core.Scorer.load(
        model, storage="file", cache_bytes=1 << 12, sums_cache_bytes=1 << 14, **LEAST
    )
    requests = [request_of(random_lists(seed, rows=9), seed) for seed in range(40)]
    want = [mapped.predict(r) for r in requests]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            for got, expected in zip(pool.map(other.predict, requests), want, strict=True):
                same_bits(got, expected)


def test_a_reload_keeps_the_options(model, tmp_path):
    other = core.Scorer.load(model, storage="file", **LEAST)
    request = request_of(random_lists(4))
    new = write_table(tmp_path / "new", seed=1)
    threads_end = threading.Event()
    answers = {core.Scorer.load(f).predict(request).tobytes() for f in (model, new)}

    def call():
        while not threads_end.is_set():
            assert other.predict(request).tobytes() in answers

    with ThreadPoolExecutor(2) as pool:
        callers = [pool.submit(call) for _ in range(2)]
        for folder in (new, model, new):
            other.reload(folder)
        threads_end.set()
        for caller in callers:
            caller.result()
    assert other.statistics.tables == 1
    same_bits(other.predict(request), core.Scorer.load(new).predict(request))


# Counters and caches -----------------------------------------------------------------------------


def test_rows_are_read_once_and_then_come_from_the_cache(model):
    scorer = core.Scorer.load(model, storage="file", **LEAST)
    scorer.predict(request_of([[7, 7, 900], [7], [], [4999]]))
    first = scorer.statistics
    assert (first.entries, first.rows, first.hits, first.misses) == (5, 3, 0, 3)
    assert (first.reads, first.bytes_read, first.bytes_needed) == (3, 3 * 64, 3 * 64)
    scorer.predict(request_of([[900, 7, 8]]))
    second = scorer.statistics
    assert (second.rows, second.hits, second.misses) == (6, 2, 4)
    assert second.hit_rate == pytest.approx(1 / 3)


def test_neighboring_rows_are_one_read(model):
    scorer = core.Scorer.load(model, storage="file", **LEAST)
    scorer.predict(request_of([range(100, 164), [2, 1]]))
    assert scorer.statistics.reads == 2
    assert scorer.statistics.misses == 66


def test_rows_of_one_block_are_one_read(tmp_path):
    table = np.arange(1 << 19, dtype=np.float32).reshape(-1, 16)
    folder = write_table(tmp_path / "m", rows=len(table), edit=lambda t: np.copyto(t, table))
    scorer = core.Scorer.load(folder, storage="file", direct=True)
    if not scorer.statistics.direct:
        pytest.skip("the file system has no O_DIRECT")
    # Large tables begin at a page, so that 8 rows of 64 bytes are in a block of 512 bytes.
    request = request_of([[0, 7, 3], [80]])
    request["x_values"][:] = 1
    np.testing.assert_array_equal(scorer.predict(request)[1], table[80])
    found = scorer.statistics
    assert (found.reads, found.misses, found.bytes_needed) == (2, 4, 4 * 64)
    assert found.bytes_read % 512 == 0
    assert found.read_amplification == found.bytes_read / (4 * 64)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.lists(st.integers(0, 80), max_size=24), min_size=1, max_size=12))
def test_the_cache_of_rows_is_that_of_a_simple_model(model, requests):
    """One set of 16 places: the row whose last use is the longest time ago leaves."""
    scorer = core.Scorer.load(model, storage="file", cache_bytes=0, **LEAST)
    places = [(None, -1)] * 16  # of each, the id and the time of its last use
    hits = 0
    for now, ids in enumerate(requests):
        scorer.predict(request_of([ids]))
        missing = []
        for row in dict.fromkeys(ids):
            found = [at for at, (known, _) in enumerate(places) if known == row]
            for at in found:
                places[at] = row, 2 * now
            hits += len(found)
            missing += [] if found else [row]
        for row in missing[:16]:  # of rows with the same time, that of the first place leaves
            at = min(range(16), key=lambda at: places[at][1])
            places[at] = row, 2 * now + 1
        assert scorer.statistics.hits == hits


def test_sums_are_found_by_their_exact_ids_and_values(model):
    scorer = core.Scorer.load(model, storage="file", sums_cache_bytes=1 << 20, **LEAST)
    mapped = core.Scorer.load(model)

    def found(ids, values):
        request = {"x_ids": np.array(ids), "x_row_splits": np.array([0, len(ids)])}
        request["x_values"] = np.array(values, np.float32)
        before = scorer.statistics.sum_hits
        same_bits(scorer.predict(request), mapped.predict(request))
        return scorer.statistics.sum_hits - before

    assert found([1, 2, 3], [1, 1, 1]) == 0
    assert found([1, 2, 3], [1, 1, 1]) == 1
    assert found([1, 3, 2], [1, 1, 1]) == 0  # sums depend on the order of their terms
    assert found([1, 2, 3], [1, 1, 2]) == 0
    assert found([1, 2], [1, 1]) == 0
    assert found([1, 2, 3], [0.0, 1, 1]) == 0
    assert found([1, 2, 3], [-0.0, 1, 1]) == 0
    assert found([7], [1]) == found([7], [1]) == 0  # one row is no sum
    assert scorer.statistics.sum_misses == 6


def test_a_full_cache_of_sums_forgets_the_least_recent(model):
    scorer = core.Scorer.load(model, storage="file", sums_cache_bytes=16 * 4096, **LEAST)
    for first in range(0, IDS - 20, 2):
        scorer.predict(request_of([range(first, first + 20)], seed=first))
    before = scorer.statistics.sum_hits
    scorer.predict(request_of([range(20)], seed=0))
    assert scorer.statistics.sum_hits == before
    scorer.predict(request_of([range(20)], seed=0))
    assert scorer.statistics.sum_hits == before + 1


# Changed rows ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["float32", "int4"])
@pytest.mark.parametrize("way", WAYS)
def test_changed_rows_are_read_from_their_own_file(tmp_path, form, way):
    rows, width = 1 << 15, 64  # at least 1 MiB
    base = write_table(tmp_path / "1", form, rows, width)
    other = scorer_programs.tables(rows, width, form, seed=9)["table"]

    def edit(table):
        for row in (0, 17, 18, rows - 1):
            table[row] = other[row]

    delta = write_table(tmp_path / "2", form, rows, width, base=base, edit=edit)
    assert json.loads((delta / "scorer.json").read_text())["format"] == 2
    whole = write_table(tmp_path / "3", form, rows, width, edit=edit)
    request = request_of([[0, 1, 17], [18, 19], [rows - 1, 5, 0]])
    scorer = core.Scorer.load(delta, **WAYS[way])
    for _ in range(2):
        same_bits(scorer.predict(request), core.Scorer.load(whole).predict(request))


def test_changed_rows_out_of_order_are_refused_for_files(tmp_path):
    rows, width = 1 << 15, 16
    base = write_table(tmp_path / "1", rows=rows, width=width)
    change = write_table(
        tmp_path / "2", rows=rows, width=width, base=base, edit=lambda t: t[[3, 8]].fill(1)
    )
    del change
    delta = write_table(
        tmp_path / "3", rows=rows, width=width, base=base, edit=lambda t: t.__setitem__([3, 8], 1)
    )
    path = delta / "scorer.json"
    program = json.loads(path.read_text())
    del program["crc32"], program["checksums"]
    path.write_text(json.dumps(program))
    for numbers in ([8, 3], [3, 3], [-1, 3], [3, rows]):
        np.save(delta / "000_table_rows.npy", np.array(numbers))
        with pytest.raises(ValueError, match="must have ascending numbers of rows below 32768"):
            core.Scorer.load(delta, storage="file")


# Errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"storage": "disk"}, "storage must be 'mapped', 'memory' or 'file', got 'disk'"),
        ({"direct": True}, "direct needs tables in files"),
        ({"sums_cache_bytes": 5}, "sums_cache_bytes needs tables in files"),
        ({"storage": "file", "cache_bytes": -1}, "cache_bytes must be at least 0, got -1"),
        ({"storage": "file", "sums_cache_bytes": -1}, "sums_cache_bytes must be at least 0"),
        ({"storage": "file", "queue_depth": 0}, r"queue_depth must be in \[1, 4096\], got 0"),
        ({"storage": "file", "queue_depth": 5000}, r"queue_depth must be in \[1, 4096\]"),
    ],
)
def test_options_out_of_their_range_are_refused(model, options, message):
    with pytest.raises(ValueError, match=message):
        core.Scorer.load(model, **options)


def test_int8_tables_with_scales_of_their_own_stay_in_memory(tmp_path):
    folder = write_table(tmp_path / "m", "scaled_int8")
    with pytest.raises(ValueError, match="000_table.npy, which cannot stay in a file; export"):
        core.Scorer.load(folder, storage="file", **LEAST)
    assert core.Scorer.load(folder, storage="file").statistics.tables == 0


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("io_uring", [False, True])
def test_a_file_that_is_cut_while_it_is_used_is_an_error_that_names_it(tmp_path, io_uring, direct):
    folder = write_table(tmp_path / "m")
    scorer = core.Scorer(
        _core.NativeScorer(
            str(folder), storage="file", direct=direct, use_io_uring=io_uring, **LEAST
        )
    )
    want = scorer.predict(request_of([[1, 2]]))
    os.truncate(folder / "000_table.npy", 4096)
    with pytest.raises(OSError, match=r"000_table.npy (cannot be read|was changed)"):
        scorer.predict(request_of([[4999]]))
    same_bits(scorer.predict(request_of([[1, 2]])), want)  # rows in the cache


def test_a_file_that_is_written_while_it_is_used_is_an_error(tmp_path):
    folder = write_table(tmp_path / "m")
    scorer = core.Scorer.load(folder, storage="file", **LEAST)
    path = folder / "000_table.npy"
    info = path.stat()
    with path.open("r+b") as file:
        file.seek(1000)
        file.write(b"x")
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns + 1))
    with pytest.raises(OSError, match="000_table.npy was changed while a scorer uses it"):
        scorer.predict(request_of([[4999]]))
    shutil.move(folder, tmp_path / "moved")  # an open file may be moved
    np.testing.assert_array_equal(os.listdir(tmp_path), ["moved"])


@pytest.mark.parametrize("storage", ["mapped", "memory", "file"])
@pytest.mark.parametrize("at", ["header", "rows", "size"])
def test_a_file_with_another_checksum_is_refused(tmp_path, storage, at):
    folder = write_table(tmp_path / "m")
    path = folder / "000_table.npy"
    content = bytearray(path.read_bytes())
    if at == "size":
        content += b"x"
    else:
        content[100 if at == "header" else -1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(
        ValueError, match=r"000_table.npy (has another checksum|must have \d+ bytes)"
    ):
        core.Scorer.load(folder, storage=storage, **LEAST)


def test_ids_out_of_range_are_errors_of_the_request(model):
    scorer = core.Scorer.load(model, storage="file", **LEAST)
    with pytest.raises(ValueError, match=r"x_ids\[1\] = 5000 is out of range"):
        scorer.predict(request_of([[1, 5000]]))
    with pytest.raises(ValueError, match=r"x_ids\[0\] = -1 is out of range"):
        scorer.rank(request_of([[-1]]), request_of([[1]]))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.sampled_from(["float32", "int8", "int4"]), st.booleans(), st.data())
def test_damaged_folders_end_in_an_error_or_an_answer(tmp_path_factory, form, direct, data):
    folder = write_table(tmp_path_factory.mktemp("damaged") / "m", form, rows=60, width=6)
    program = json.loads((folder / "scorer.json").read_text())
    if data.draw(st.booleans()):
        del program["crc32"], program["checksums"]
        (folder / "scorer.json").write_text(json.dumps(program))
    for _ in range(data.draw(st.integers(1, 3))):
        file = data.draw(st.sampled_from(sorted(folder.iterdir())))
        content = bytearray(file.read_bytes())
        at = data.draw(st.integers(0, max(0, len(content) - 1)))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        file.write_bytes(bytes(content[: data.draw(st.sampled_from([None, at]))]))
    try:
        scorer = core.Scorer.load(folder, storage="file", direct=direct, **LEAST)
        scorer.predict(request_of([[1, 59], [30]]))
    except (ValueError, OSError):
        pass
    finally:
        shutil.rmtree(folder)


# Files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1 << 18, 1), (3, 1 << 17), (5,), (0, 4), (1 << 20,)])
def test_arrays_are_files_that_numpy_reads(tmp_path, shape):
    array = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    size, *_ = save_array(tmp_path / "a.npy", array)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), array)
    assert size == (tmp_path / "a.npy").stat().st_size
    if array.nbytes >= 1 << 20:
        assert size - array.nbytes == 4096
