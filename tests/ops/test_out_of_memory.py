"""A kernel that runs out of memory raises an error and leaves the table unchanged."""

import json
import subprocess
import sys

import pytest

from twml_ops.ops._library import is_native

PROGRAM = """
import json, resource
import numpy as np
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(4)
from twml_ops import ops

D = 2**24  # 64 MB a row
weights, grad = tf.Variable(tf.ones([2, D])), tf.ones([4, D])
many, nothing = tf.zeros([2**23], tf.int64), tf.zeros([2**23, 0])

def sums():
    return ops.sum_duplicates(many, nothing)

def update():
    # With repeated ids every thread needs working memory for sums.
    gradient = tf.IndexedSlices(grad, tf.constant([0, 1, 0, 1], tf.int64))
    ops.apply_rows("sgd", weights, [], gradient, [1.0, 0.0])

hard = resource.getrlimit(resource.RLIMIT_AS)[1]
ops.hash_ids(many, bits=8)  # the threads are started
found = {}
for call in (sums, update):
    status = open("/proc/self/status").read()
    size = int(status.split("VmSize:")[1].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (size + 2**24, hard))
    try:
        call()
        found[call.__name__] = "ran"
    except tf.errors.ResourceExhaustedError as e:
        found[call.__name__] = e.message
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
found["untouched"] = bool(tf.reduce_all(weights == 1.0))
update()
found["usable"] = float(weights[0, 0])
print(json.dumps(found))
"""


@pytest.mark.one_tf
@pytest.mark.skipif(not is_native(), reason="stock ops have errors of their own")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux' /proc")
def test_running_out_of_memory_is_an_error_and_leaves_the_table_unchanged():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for call, op in (("sums", "SumDuplicates"), ("update", "ApplyRows")):
        assert f"Twml>{op} could not allocate its working memory" in found[call]
    assert found["untouched"]
    assert found["usable"] == -1.0
