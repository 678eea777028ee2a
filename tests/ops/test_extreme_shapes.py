"""Shapes that overflow or exceed the memory are errors."""

import json
import re
import sys

import pytest
import tensorflow as tf

from tests import forked
from twml_ops import ops
from twml_ops.ops._library import is_native

HUGE = 2**62
OVERFLOW = f"4 x {HUGE} x 4 bytes is larger than any memory"

pytestmark = pytest.mark.skipif(not is_native(), reason="stock ops have errors of their own")


def refused(message):
    return pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message))


def wide_table():
    """No rows, each of 2^62 columns: no memory at all."""
    return tf.reshape(tf.zeros([0]), [0, HUGE])


@pytest.mark.parametrize("make", [tf.identity, tf.Variable], ids=["tensor", "variable"])
def test_an_output_that_overflows_is_refused_with_its_size(make):
    with refused(f"output of {OVERFLOW}"):
        ops.sparse_linear(tf.zeros([0], tf.int64), None, [0] * 5, make(wide_table()))


def test_an_output_that_overflows_is_refused_with_its_size_in_a_group():
    batch = (tf.zeros([0], tf.int64), None, [0] * 5)
    with refused(f"output of {OVERFLOW}"):
        ops.grouped_sparse_linear([batch], [tf.Variable(wide_table())])


def test_a_batch_without_rows_is_multiplied_by_a_table_of_any_width():
    y = ops.sparse_linear(tf.zeros([0], tf.int64), None, [0], wide_table())
    assert y.shape == (0, HUGE)


def test_rows_that_cannot_be_counted_are_refused():
    var = tf.Variable(tf.reshape(tf.zeros([0]), [0, HUGE, HUGE]))
    gradient = tf.IndexedSlices(tf.reshape(tf.zeros([0]), [0, 1]), tf.zeros([0], tf.int64))
    with refused("var must have rows of less than 2^63 items"):
        ops.apply_rows("sgd", var, [], gradient, [0.1, 0.0])


def test_more_rows_than_memory_holds_are_refused_with_their_size():
    with pytest.raises(
        tf.errors.ResourceExhaustedError,
        match=f"row_splits of {2**50 + 1} x 8 bytes could not be allocated",
    ):
        ops.row_splits_from_indices(tf.zeros([0], tf.int64), 2**50)


def test_a_handle_without_a_variable_is_refused():
    handle = tf.Variable(tf.zeros([2, 2])).handle
    raw = ops.sparse_linear.__globals__["library"].twml_resource_sparse_linear

    @tf.function
    def call(number):
        none = tf.stack([handle])[:number]
        return raw([0], tf.zeros([0]), tf.constant([0, 1], tf.int64), none, binary=True)

    with refused("input 3 must be one variable, got 0"):
        call(tf.constant(0))


FUZZ = """
import itertools, json, pathlib, random, resource, sys, tempfile
import tensorflow as tf
from twml_ops.ops._library import library

status = open("/proc/self/status").read()
most = int(status.split("VmSize:")[1].split()[0]) * 1024 + 2**31
resource.setrlimit(resource.RLIMIT_AS, (most, most))

# Of every op: its inputs (v, w, x, y: variables, g: a grouped batch, n: negative, c: the cache of a
# table in a file, r: the rows of such a table, []: a list) and attributes.
FILES = pathlib.Path(tempfile.mkdtemp())
FILE = {"path": str(FILES / "open"), "num_rows": 20, "prefetch_rows": 4, "policy": "lru",
        "direct": False, "io_uring": True}
NORM = {"epsilon": 0.1, "nonfinite": "zero"}
BUCKETS = {"side": "left", "missing": "drop", "unknown": "pass"}
OPS = {
    "apply_rows": ("v [vv] i f [ffffff] i", {"rule": "ftrl"}),
    "average_rows": ("v v w i i n", {}),
    "group_ids": ("i i", {}),
    "group_batch": ("i f i i [g]", {"binary": True}),
    "sparse_linear_backward_apply": ("v [] g f [ff] i", {"rule": "sgd"}),
    "sparse_linear": ("i f i f", {"binary": True}),
    "resource_sparse_linear": ("i f i v", {"binary": True}),
    "sparse_linear_values_grad": ("i i f f", {}),
    "resource_sparse_linear_values_grad": ("i i v f", {}),
    "sparse_linear_weights_grad": ("i f i f i [g]", {"binary": True}),
    "grouped_sparse_linear": ("[ii] [ff] [ii] [vv]", {"binary": [True, False]}),
    "sum_duplicates": ("i f [g]", {}),
    "row_splits_from_indices": ("i i", {}),
    "csr_from_indices": ("i i", {}),
    "hash_ids": ("i", {"bits": 8}),
    "dynamic_lookup": ("i w w w x y w b i", {"min_count": 2, "eviction": "lru",
                                             "max_age": 0, "seed": 0}),
    "field_rows": ("i", {"num_rows": [2, 7]}),
    "find_keys": ("i i", {}),
    "gather_dot": ("f i f", {}),
    "tree_sums": ("f i j f u j f j", {"max_depth": 3}),
    "max_norm": ("i f v [v] b [g]", NORM),
    "online_standardize": ("i f v [v] b [g]", {"clip": 1.0, "decay": 1.0, **NORM}),
    "percentile_discretize": ("i f i i f i", {"pass_through_bits": 8, **BUCKETS}),
    "hashing_discretize": ("i f i i f i", {"output_bits": 8, **BUCKETS}),
    "pack_entries": ("i f i", {"parts": 2, "input_dim": 2**60, "binary": True}),
    "unpack_entries": ("u", {"T": tf.int64}),
    "group_packed_entries": ("u i", {"T": tf.int64}),
    "take_changed_rows": ("[vv] i", {"dtypes": [tf.float32, tf.float32]}),
    "keep_changed_rows": ("v i i", {}),
    "mark_changed_rows": ("v i", {"all": False}),
    "release_changed_rows": ("v i", {}),
    "open_tiered_rows": ("v f", FILE),
    "attach_slots": ("r [vv] [ff]", {}),
    "prefetch_rows": ("r i", {}),
    "read_tiered_rows": ("r i i", {"part": 0, "dtype": tf.float32}),
    "write_tiered_rows": ("r i f", {"part": 0}),
    "tiered_statistics": ("r", {}),
    "tiered_sparse_linear": ("i f i c", {"binary": True, "input_dim": 20}),
    "tiered_sparse_linear_values_grad": ("i i c f", {"input_dim": 20}),
    "message_port": ("", {}),
    "connect_messages": ("i", {"host": "127.0.0.1", "session": 1, "seconds": 1.0}),
    "send_message": ("v [f]", {"session": 1, "number": 0}),
    "receive_message": ("v", {"T": [tf.float32], "session": 1, "number": 0}),
    "quantile_sketch_update": ("d i d i j f i f f", {"has_weights": True}),
    "quantile_sketch_merge": ("d i d i j f d i d i j f", {}),
    "quantile_sketch_quantiles": ("d i d i j f i d", {}),
}
names = {n[5:] for n in dir(library.loaded) if n.startswith("twml_")}
assert set(OPS) == {n for n in names if not n.endswith("_eager_fallback")}

HUGE = 2**62
DTYPES = {"i": tf.int64, "j": tf.int32, "f": tf.float32, "d": tf.float64, "u": tf.uint8,
          "b": tf.bool, "n": tf.float64, "v": tf.float32, "w": tf.int64, "x": tf.int32,
          "y": tf.uint8}
LIKELY = {"i": [[], [1], [5], [0]], "f": [[0], [0, HUGE], [4, 0], [0, 2**34]], "b": [[]],
          "n": [[]],
          "v": [[0, HUGE], [3, 2], [16, 2], [0, 2**34], [HUGE, 0]],
          "w": [[3]], "x": [[8]], "y": [[4, 2]]}
ANY = [[], [0], [1], [3], [0, 0], [2, 3], [3, 0], [5, 2], [0, HUGE], [HUGE, 0], [0, 2**34],
       [0, HUGE, HUGE], [0, 2, 3], [1, 2, 2], [0, 0, HUGE, 0]]

def groups(rng):
    if rng.random() < 0.2:  # another variant, or more than one
        return tf.raw_ops.TensorListReserve(
            element_shape=tf.constant([], tf.int32), num_elements=1, element_dtype=tf.float32
        )
    rows = rng.choice([0, 3, 5])
    ids, splits = tf.range(tf.constant(rows, tf.int64)), tf.range(tf.constant(rows + 1, tf.int64))
    input_dim = tf.constant(rng.choice([5, 2**62]), tf.int64)
    made = library.twml_group_ids(ids, input_dim)
    if rng.random() < 0.5:
        made = library.twml_group_batch(ids, tf.zeros([0]), splits, input_dim, [], binary=True)
    return made if rng.random() < 0.9 else tf.stack([made])

numbers = itertools.count()

def rows_in_file(kind, rng, variables):
    cache = tf.Variable(tf.zeros([16, 2]))
    options = {**FILE, "path": str(FILES / str(next(numbers)))}
    rows = library.twml_open_tiered_rows(cache.handle, tf.zeros([2]), **options)
    variables += [cache, rows]
    if rng.random() < 0.1:
        return tf.stack([cache.handle, rows])[:0]
    return rows if kind == "r" else cache.handle

def make(kind, rng, variables):
    if kind == "g":
        return groups(rng)
    if kind in "cr":
        return rows_in_file(kind, rng, variables)
    shape = rng.choice(LIKELY.get(kind, ANY) if rng.random() < 0.7 else ANY)
    value = rng.choice([0, 0, 0, 0, 1, -1, 2**50, HUGE, 2**63 - 1]) if kind == "i" else 1
    value = -1 if kind == "n" else value
    number = 0 if 0 in shape else int(tf.reduce_prod(shape))
    x = tf.reshape(tf.fill([number], tf.cast(tf.constant(value, tf.int64), DTYPES[kind])), shape)
    if kind not in "vwxy":
        return x
    variables.append(tf.Variable(x))
    handle = variables[-1].handle
    return handle if rng.random() < 0.95 else tf.stack([handle])[:0]

counts = {}
for name, (inputs, attributes) in OPS.items():
    rng = random.Random(name)
    counts[name] = [0, 0]
    for trial in range(int(sys.argv[1])):
        variables = []
        given = [
            [make(kind, rng, variables) for kind in word[1:-1]][: word != "[g]" or rng.randrange(2)]
            if word[0] == "["
            else make(word, rng, variables)
            for word in inputs.split()
        ]
        shapes = [[x.shape for x in g] if isinstance(g, list) else g.shape for g in given]
        print(name, trial, shapes, file=sys.stderr)
        try:
            getattr(library, "twml_" + name)(*given, **attributes)
            counts[name][0] += 1
        except (tf.errors.InvalidArgumentError, tf.errors.ResourceExhaustedError,
                tf.errors.UnavailableError):
            counts[name][1] += 1
print(json.dumps(counts))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux' /proc")
def test_any_shapes_are_computed_or_refused():
    done = forked.run(["-c", FUZZ, "80"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    counts = json.loads(done.stdout.splitlines()[-1])
    del counts["message_port"]  # it has no inputs
    assert sum(ran for ran, _ in counts.values()) > 50  # not everything is refused at the door
