"""The self-check reports what is installed and fails if a check fails."""

import os
import subprocess
import sys

import pytest
import tensorflow as tf

from twml_ops import ops, selfcheck
from twml_ops.ops import _library

native = pytest.mark.skipif(not _library.is_native(), reason="there is no op library")


@native
def test_a_working_installation_passes(capsys):
    assert selfcheck.main(["--require-library"]) == 0
    out = capsys.readouterr().out
    assert f"_twml_ops.{_library.tag_of(tf.__version__)}.so" in out
    assert "WRONG" not in out
    for line in ("SIMD level", "Keras", "gradient           right", "all is well"):
        assert line in out


def test_without_a_library_it_gives_the_reason_and_fails_if_requested():
    environment = {**os.environ, _library.FALLBACK_VARIABLE: "1"}
    done = subprocess.run(
        [sys.executable, "-m", "twml_ops.selfcheck", "--require-library"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "none: stock TensorFlow ops, slower" in done.stdout
    assert "gradient           right" in done.stdout
    assert "the op library is not loaded" in done.stdout


def test_a_wrong_result_fails(monkeypatch, capsys):
    right = ops.sparse_linear
    monkeypatch.setattr(ops, "sparse_linear", lambda *a: 2 * right(*a))
    assert selfcheck.main([]) == 1
    out = capsys.readouterr().out
    assert "PROBLEM            op: expected [[4.0, 5.0]" in out
    assert "result             failed" in out
