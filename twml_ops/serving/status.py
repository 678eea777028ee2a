"""The status and the metadata of a model, as TensorFlow Serving describes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from twml_ops.serving.messages import SignatureDef, SignatureDefMap
from twml_ops.serving.model import State
from twml_ops.serving.version import Version

_DTYPES = {"float32": (1, "DT_FLOAT"), "int64": (9, "DT_INT64"), "bool": (10, "DT_BOOL")}
_DTYPES["string"] = (7, "DT_STRING")
_CODES = {0: "OK", 2: "UNKNOWN"}
METHOD = "tensorflow/serving/predict"

# name -> (dtype, shape or None)
_Tensors = dict[str, tuple[str, tuple[int, ...] | None]]


def signatures_of(version: Version) -> dict[str, tuple[_Tensors, _Tensors]]:
    """The inputs and the outputs of each signature, with their types and shapes."""
    outputs: _Tensors = {}
    for name in version.output_names:
        dims = version.output_dims.get(name)
        outputs[name] = "float32", None if dims is None else (-1, *dims)
    return {
        name: ({one.name: (one.dtype, one.shape) for one in inputs.values()}, outputs)
        for name, inputs in version.signatures.by_name.items()
    }


def signature_map(version: Version) -> Any:
    """The signatures as a `SignatureDefMap`."""
    made = SignatureDefMap()
    for name, (inputs, outputs) in signatures_of(version).items():
        signature = SignatureDef(method_name=METHOD)
        for tensors, infos in ((inputs, signature.inputs), (outputs, signature.outputs)):
            for key, (dtype, shape) in tensors.items():
                infos[key].name = f"{key}:0"
                infos[key].dtype = _DTYPES[dtype][0]
                infos[key].tensor_shape.unknown_rank = shape is None
                for size in shape or ():
                    infos[key].tensor_shape.dim.add(size=size)
        made.signature_def[name].CopyFrom(signature)
    return made


def metadata_json(model: str, version: Version) -> dict[str, Any]:
    """The answer of REST to a request for metadata."""
    signatures = {
        name: {
            "inputs": {key: _info_json(key, *of) for key, of in inputs.items()},
            "outputs": {key: _info_json(key, *of) for key, of in outputs.items()},
            "method_name": METHOD,
        }
        for name, (inputs, outputs) in signatures_of(version).items()
    }
    return {
        "model_spec": {"name": model, "signature_name": "", "version": str(version.number)},
        "metadata": {"signature_def": {"signature_def": signatures}},
    }


def status_json(states: Iterable[State]) -> dict[str, Any]:
    """The answer of REST to a request for the status."""
    return {
        "model_version_status": [
            {
                "version": str(s.number),
                "state": s.name,
                "status": {"error_code": _CODES[s.error_code], "error_message": s.error_message},
            }
            for s in states
        ]
    }


def _info_json(name: str, dtype: str, shape: tuple[int, ...] | None) -> dict[str, Any]:
    return {
        "dtype": _DTYPES[dtype][1],
        "tensor_shape": {
            "dim": [{"size": str(size), "name": ""} for size in shape or ()],
            "unknown_rank": shape is None,
        },
        "name": f"{name}:0",
    }
