"""What an import says when the op library does not fit the running TensorFlow."""

import pytest
import tensorflow as tf

from twml_ops.ops import _library


def test_the_library_of_the_running_tensorflow_is_loaded():
    assert hasattr(_library.load(), "twml_sparse_linear")


@pytest.mark.parametrize(
    ("version", "tag"), [("2.21.0", "tf2.21"), ("2.15.1", "tf2.15"), ("2.22.0-rc1", "tf2.22")]
)
def test_minor_versions_name_the_library(version, tag):
    assert _library.tag_of(version) == tag


def test_a_library_of_other_versions_names_them_and_the_remedy(tmp_path):
    for tag in ("tf2.15", "tf2.21"):
        (tmp_path / f"_twml_ops.{tag}.so").touch()
    with pytest.raises(ImportError) as error:
        _library.load(tmp_path, "2.99.0")
    message = str(error.value)
    assert "was built for TensorFlow 2.15, 2.21, but TensorFlow 2.99.0 is running" in message
    assert "pip install --no-deps --force-reinstall ." in message


def test_no_library_at_all_says_so(tmp_path):
    with pytest.raises(ImportError, match="has not been built, but TensorFlow"):
        _library.load(tmp_path)


def test_a_library_that_does_not_load_says_why(tmp_path):
    (tmp_path / f"_twml_ops.{_library.tag_of(tf.__version__)}.so").write_bytes(b"no ELF file")
    with pytest.raises(ImportError, match=r"does not load into TensorFlow .* Rebuild it"):
        _library.load(tmp_path)
