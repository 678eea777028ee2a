"""Loading of the op library, and the errors if none fits the running TensorFlow."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from twml_ops.ops import _library

ROOT = Path(__file__).resolve().parents[2]


def test_the_library_of_the_running_tensorflow_is_loaded():
    assert hasattr(_library.load(), "twml_sparse_linear")


@pytest.mark.skipif(
    "libasan" not in os.environ.get("LD_PRELOAD", ""), reason="of `make test-ops-asan`"
)
def test_the_address_sanitizer_gets_the_library_that_was_built_for_it():
    assert Path(_library.__file__).is_relative_to(ROOT / "build" / "address")


@pytest.mark.parametrize(
    ("version", "tag"), [("2.21.0", "tf2.21"), ("2.15.1", "tf2.15"), ("2.22.0-rc1", "tf2.22")]
)
def test_the_library_is_named_by_minor_version(version, tag):
    assert _library.tag_of(version) == tag


def test_the_error_names_built_versions_and_the_rebuild_command(tmp_path):
    for tag in ("tf2.15", "tf2.21"):
        (tmp_path / f"_twml_ops.{tag}.so").touch()
    with pytest.raises(ImportError) as error:
        _library.load(tmp_path, "2.99.0")
    message = str(error.value)
    assert "was built for TensorFlow 2.15, 2.21, but TensorFlow 2.99.0 is running" in message
    assert "pip install --no-deps --force-reinstall ." in message


def test_the_error_says_if_nothing_was_built(tmp_path):
    with pytest.raises(ImportError, match="has not been built, but TensorFlow"):
        _library.load(tmp_path)


def test_the_error_says_why_a_library_does_not_load(tmp_path):
    (tmp_path / f"_twml_ops.{_library.tag_of(tf.__version__)}.so").write_bytes(b"no ELF file")
    with pytest.raises(ImportError, match=r"does not load into TensorFlow .* Rebuild it"):
        _library.load(tmp_path)


def test_without_a_library_stock_ops_are_used_after_one_warning(tmp_path, monkeypatch):
    monkeypatch.delenv(_library.FALLBACK_VARIABLE, raising=False)
    with pytest.warns(_library.FallbackWarning, match="much slower.* has not been built") as caught:
        got = _library.load_or_fall_back(tmp_path)
    assert got is _library.stock.library
    assert len(caught) == 1


def test_stock_ops_can_be_requested(monkeypatch, recwarn):
    monkeypatch.setenv(_library.FALLBACK_VARIABLE, "1")
    assert _library.load_or_fall_back() is _library.stock.library
    assert not recwarn.list


TRAIN = """
import re, sys, warnings
import tensorflow as tf
import twml_ops.ops._library as library
assert not library.is_native()
code, = re.findall(r"^```python\\n(.*?)^```", open(sys.argv[1]).read(), re.DOTALL | re.MULTILINE)
scope = {}
exec(code, scope)
losses = scope["model"].history.history["loss"]
assert losses[-1] < losses[0], losses
"""


@pytest.mark.slow
def test_the_readme_example_learns_on_stock_ops():
    readme = Path(__file__).resolve().parents[2] / "README.md"
    subprocess.run(
        [sys.executable, "-c", TRAIN, readme],
        env={**os.environ, _library.FALLBACK_VARIABLE: "1"},
        check=True,
    )
