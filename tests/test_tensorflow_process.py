"""In a command idle threads of TensorFlow sleep, and freed memory is used again."""

import ctypes
import json
import os
import subprocess
import sys

import pytest

MEBIBYTE = 1 << 20
CODE = """
import json, resource
from twml_ops import cli
cli.prepare_imports()
import numpy as np
import tensorflow as tf
from tensorflow.python.eager.context import context
from twml_ops import data
source = data.open_source("csv:" + {path!r})
for _ in source.dataset(2):
    pass
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def use():
    arrays = [np.ones({size} // 8) for _ in range(32)]  # more than the heap has free
use()
before = faults()
use()
print(json.dumps([context().config.experimental.disable_thread_spinning, faults() - before]))
"""


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """[whether idle threads sleep, page faults of 32 arrays of a mebibyte] in a command."""
    path = tmp_path_factory.mktemp("data") / "rows.csv"
    path.write_text("label,x\n" + "0,1.5\n1,2.5\n" * 4)
    code = CODE.format(path=str(path), size=MEBIBYTE)
    variables = {k: v for k, v in os.environ.items() if "MALLOC" not in k and "GLIBC" not in k}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=variables
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_idle_threads_of_a_command_sleep(command):
    assert command[0] is True


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="malloc is not that of glibc"
)
def test_freed_arrays_of_a_command_are_used_again_after_its_first_dataset(command):
    assert command[1] < MEBIBYTE / os.sysconf("SC_PAGE_SIZE")  # of one array of 32
