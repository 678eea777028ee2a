"""The library of CUDA kernels is looked up when it is needed, and its absence is explained."""

import pytest
import tensorflow as tf

from twml_ops import layers
from twml_ops.ops import _cuda_library, _library
from twml_ops.ops._cuda_library import CudaKernels, find_library


def test_the_library_is_a_file_of_the_package_or_named_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv(_cuda_library.LIBRARY_VARIABLE, raising=False)
    assert find_library(tmp_path) is None
    (tmp_path / "libtwml_cuda.so").touch()
    assert find_library(tmp_path) == tmp_path / "libtwml_cuda.so"
    monkeypatch.setenv(_cuda_library.LIBRARY_VARIABLE, "/elsewhere/a.so")
    assert str(find_library(tmp_path)) == "/elsewhere/a.so"


def test_a_problem_is_explained(tmp_path, monkeypatch):
    monkeypatch.delenv(_cuda_library.LIBRARY_VARIABLE, raising=False)
    assert "stock TensorFlow ops" in CudaKernels(None).problem()
    missing = CudaKernels(tmp_path / "_twml_ops.so")
    assert "make cuda-library" in missing.problem()
    assert not missing.are_available()


@pytest.mark.skipif(not _library.is_native(), reason="stock ops have no such function")
def test_a_file_that_is_not_the_library_is_a_problem_with_its_name(monkeypatch):
    # The registration happens once per process, so a process tries only one file.
    monkeypatch.setenv(_cuda_library.LIBRARY_VARIABLE, "/nowhere/libtwml_cuda.so")
    kernels = CudaKernels(_library.path_of(tf.__version__))
    assert "/nowhere/libtwml_cuda.so" in kernels.problem()


@pytest.mark.parametrize("place", ["auto", "host", "device"])
def test_without_a_gpu_every_placement_is_the_host(place):
    layer = layers.SparseLinear(2, 5, placement=place, kernel_initializer="ones", use_bias=False)
    outputs = layer(tf.ragged.constant([[1, 2], [4]], dtype=tf.int64))
    assert outputs.numpy().tolist() == [[2, 2], [1, 1]]
    assert layers.SparseLinear.from_config(layer.get_config()).placement == place
