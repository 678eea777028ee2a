"""Other libraries in benchmarks/serving.py: LightGBM and ONNX Runtime, and their quality."""

from __future__ import annotations

import ctypes
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks.serving_requests import labels_of, make_request, ragged_features, signals_of

TEST_ROWS = 5000


def tree_features(flat: dict[str, np.ndarray]) -> np.ndarray:
    """What LightGBM gets of a request, float64 [B, 43]: numbers, categories, and `SIGNALS`."""
    rows = len(flat["sparse_row_splits"]) - 1
    numbers = flat["continuous_values"].reshape(rows, -1)
    categories = flat["categorical_ids"].reshape(rows, -1) % 1000
    return np.column_stack([numbers, categories, signals_of(flat)]).astype(np.float64)


class LightGBM:
    """Trees that are as good as the model, called by LightGBM's C API on one thread.

    Args:
        model: the model, trained on the same examples.
        rows: their number.

    Attributes:
        quality: number of trees, and log loss and AUC of both on other examples.
    """

    def __init__(self, model: tf.keras.Model, rows: int) -> None:
        import lightgbm
        from lightgbm.basic import _LIB

        flat, others = make_request(rows, 0), make_request(TEST_ROWS, 99)
        x, y = tree_features(flat), labels_of(flat, 0)
        probe, labels = tree_features(others), labels_of(others, 99)
        ours = model.predict(ragged_features(others), verbose=0)[:, 0]
        parameters = {"objective": "binary", "num_leaves": 31, "verbose": -1, "seed": 1}
        for trees in (5, 10, 20, 30, 40, 50, 70, 100, 150, 200, 400):
            self._booster = lightgbm.train(parameters, lightgbm.Dataset(x, y), trees)
            theirs = np.asarray(self._booster.predict(probe))
            if log_loss(theirs, labels) <= log_loss(ours, labels):
                break
        self.quality = {
            "trees": trees,
            "log loss": log_loss(theirs, labels),
            "AUC": auc(theirs, labels),
            "our log loss": log_loss(ours, labels),
            "our AUC": auc(ours, labels),
        }
        self._library, self._columns = _LIB, x.shape[1]
        self._config = ctypes.c_void_p()
        options = (0, 0, -1, 1, self._columns, b"num_threads=1")  # normal, all trees, float64
        code = _LIB.LGBM_BoosterPredictForMatSingleRowFastInit(
            self._booster._handle, *options, ctypes.byref(self._config)
        )
        assert code == 0, code
        self._size = ctypes.c_int64()

    def call(self, x: np.ndarray) -> np.ndarray:
        """The probabilities of rows, float64 [B]."""
        out = np.empty(len(x))
        result = ctypes.byref(self._size), ctypes.c_void_p(out.ctypes.data)
        data = ctypes.c_void_p(x.ctypes.data)
        if len(x) == 1:
            function = self._library.LGBM_BoosterPredictForMatSingleRowFast
            code = function(self._config, data, *result)
        else:
            function = self._library.LGBM_BoosterPredictForMat
            shape = (1, len(x), self._columns, 1)  # float64, by row
            options = (0, 0, -1, b"num_threads=1")
            code = function(self._booster._handle, data, *shape, *options, *result)
        assert code == 0, code
        return out


def log_loss(p: np.ndarray, y: np.ndarray) -> float:
    """The mean log loss."""
    p = np.clip(p, 1e-7, 1 - 1e-7)
    return float(-np.mean(y * np.log(p) + (1 - y) * np.log1p(-p)))


def auc(p: np.ndarray, y: np.ndarray) -> float:
    """The area under the ROC curve."""
    metric = tf.keras.metrics.AUC(num_thresholds=2000)
    metric.update_state(y, np.clip(p, 0, 1))
    return float(metric.result())


def onnx_call(folder: Path) -> Callable[[np.ndarray], np.ndarray] | None:
    """The dense layers of the model in ONNX Runtime on one thread, or None without it."""
    if any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime")):
        return None
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    steps = json.loads((folder / "scorer.json").read_text())["steps"]
    nodes, weights, name = [], [], "x"
    for step in (s for s in steps if s["op"] == "dense"):
        arrays = {key: np.load(folder / file) for key, file in step["arrays"].items()}
        inputs = [name]
        for key in ("kernel", "bias"):
            if key in arrays:
                weights.append(numpy_helper.from_array(arrays[key], f"{step['out'][0]}{key}"))
                inputs.append(weights[-1].name)
        nodes.append(helper.make_node("Gemm", inputs, [step["out"][0]]))
        name = step["out"][0]
        if arrays["kernel"].shape[1] > 1:
            nodes.append(helper.make_node("Relu", [name], [f"{name}r"]))
            name = f"{name}r"
    nodes.append(helper.make_node("Sigmoid", [name], ["y"]))
    width = next(w.dims[0] for w in weights if len(w.dims) == 2)
    ends = [
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None, w])]
        for n, w in (("x", width), ("y", 1))
    ]
    graph = helper.make_graph(nodes, "dense", *ends, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda x: session.run(["y"], {"x": x})[0]
