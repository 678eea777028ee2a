"""The protocol messages of TensorFlow Serving that the server understands.

They are described in a pool of their own: TensorFlow registers messages with the same names in the
default pool, in the same process. Names and numbers of fields are the same as in the files
tensor.proto, tensor_shape.proto, types.proto and meta_graph.proto of TensorFlow, and in the files
of tensorflow_serving/apis and tensorflow_serving/util. Fields that are not listed are ignored.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    wrappers_pb2,
)

_TENSORFLOW = """
enum DataType { DT_INVALID = 0 DT_FLOAT = 1 DT_DOUBLE = 2 DT_INT32 = 3 DT_UINT8 = 4 DT_INT16 = 5
    DT_INT8 = 6 DT_STRING = 7 DT_INT64 = 9 DT_BOOL = 10 DT_BFLOAT16 = 14 DT_UINT16 = 17
    DT_HALF = 19 DT_UINT32 = 22 DT_UINT64 = 23 }
message TensorShapeProto.Dim { int64 size = 1 string name = 2 }
message TensorShapeProto { repeated tensorflow.TensorShapeProto.Dim dim = 2 bool unknown_rank = 3 }
message TensorProto { tensorflow.DataType dtype = 1 tensorflow.TensorShapeProto tensor_shape = 2
    int32 version_number = 3 bytes tensor_content = 4 repeated float float_val = 5
    repeated double double_val = 6 repeated int32 int_val = 7 repeated bytes string_val = 8
    repeated int64 int64_val = 10 repeated bool bool_val = 11 repeated int32 half_val = 13
    repeated uint32 uint32_val = 16 repeated uint64 uint64_val = 17 }
message TensorInfo { string name = 1 tensorflow.DataType dtype = 2
    tensorflow.TensorShapeProto tensor_shape = 3 }
message SignatureDef { map tensorflow.TensorInfo inputs = 1 map tensorflow.TensorInfo outputs = 2
    string method_name = 3 }
"""

_SERVING = """
message ModelSpec { string name = 1 google.protobuf.Int64Value version = 2
    string signature_name = 3 string version_label = 4 }
message PredictRequest { tensorflow.serving.ModelSpec model_spec = 1
    map tensorflow.TensorProto inputs = 2 repeated string output_filter = 3 }
message PredictResponse { map tensorflow.TensorProto outputs = 1
    tensorflow.serving.ModelSpec model_spec = 2 }
message SignatureDefMap { map tensorflow.SignatureDef signature_def = 1 }
message GetModelMetadataRequest { tensorflow.serving.ModelSpec model_spec = 1
    repeated string metadata_field = 2 }
message GetModelMetadataResponse { tensorflow.serving.ModelSpec model_spec = 1
    map google.protobuf.Any metadata = 2 }
message StatusProto { int32 error_code = 1 string error_message = 2 }
enum ModelVersionStatus.State { UNKNOWN = 0 START = 10 LOADING = 20 AVAILABLE = 30 UNLOADING = 40
    END = 50 }
message ModelVersionStatus { int64 version = 1
    tensorflow.serving.ModelVersionStatus.State state = 2
    tensorflow.serving.StatusProto status = 3 }
message GetModelStatusRequest { tensorflow.serving.ModelSpec model_spec = 1 }
message GetModelStatusResponse {
    repeated tensorflow.serving.ModelVersionStatus model_version_status = 1 }
"""

_BLOCK = re.compile(r"(message|enum) ([\w.]+) \{(.*?)\}", re.S)
_FIELD = re.compile(r"(?:(repeated|map) )?([\w.]+) (\w+) = (\d+)")
_FieldType = descriptor_pb2.FieldDescriptorProto


def _add_field(
    message: descriptor_pb2.DescriptorProto, full_name: str, match: re.Match[str], enums: set[str]
) -> None:
    label, kind, name, number = match.groups()
    field = message.field.add(name=name, number=int(number))
    field.label = _FieldType.LABEL_REPEATED if label else _FieldType.LABEL_OPTIONAL
    if label == "map":  # a repeated message of keys and values
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        for text in ("string key = 1", f"{kind} value = 2"):
            _add_field(entry, "", _match(text), enums)
        field.type, field.type_name = _FieldType.TYPE_MESSAGE, f".{full_name}.{entry.name}"
    elif "." in kind:
        field.type = _FieldType.TYPE_ENUM if kind in enums else _FieldType.TYPE_MESSAGE
        field.type_name = f".{kind}"
    else:
        field.type = _FieldType.Type.Value(f"TYPE_{kind.upper()}")


def _match(text: str) -> re.Match[str]:
    found = _FIELD.search(text)
    assert found is not None, text
    return found


def _file(package: str, text: str, dependencies: list[str], enums: set[str]) -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name=f"twml_ops/{package}.proto", package=package, syntax="proto3", dependency=dependencies
    )
    found = _BLOCK.findall(text)
    enums |= {f"{package}.{name}" for kind, name, _ in found if kind == "enum"}
    inner = {}  # full name of a message -> where its inner types belong
    for kind, name, _ in found:
        if kind == "message" and "." not in name:
            inner[name] = file.message_type.add(name=name)
    for kind, name, body in found:
        outer, _, last = name.rpartition(".")
        holder: Any = inner[outer] if outer else file
        if kind == "enum":
            made = holder.enum_type.add(name=last)
            for key, number in re.findall(r"(\w+) = (\d+)", body):
                made.value.add(name=key, number=int(number))
            continue
        message = inner.get(name) or holder.nested_type.add(name=last)
        for match in _FIELD.finditer(body):
            _add_field(message, f"{package}.{name}", match, enums)
    return file


def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for known in (any_pb2, wrappers_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    enums: set[str] = set()
    tensorflow = _file("tensorflow", _TENSORFLOW, [], enums)
    known_files = [any_pb2.DESCRIPTOR.name, wrappers_pb2.DESCRIPTOR.name]
    serving = _file("tensorflow.serving", _SERVING, [tensorflow.name, *known_files], enums)
    for file in (tensorflow, serving):
        pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL = _pool()


def _class(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(name))


TensorProto = _class("tensorflow.TensorProto")
TensorShapeProto = _class("tensorflow.TensorShapeProto")
SignatureDef = _class("tensorflow.SignatureDef")
ModelSpec = _class("tensorflow.serving.ModelSpec")
PredictRequest = _class("tensorflow.serving.PredictRequest")
PredictResponse = _class("tensorflow.serving.PredictResponse")
SignatureDefMap = _class("tensorflow.serving.SignatureDefMap")
GetModelMetadataRequest = _class("tensorflow.serving.GetModelMetadataRequest")
GetModelMetadataResponse = _class("tensorflow.serving.GetModelMetadataResponse")
GetModelStatusRequest = _class("tensorflow.serving.GetModelStatusRequest")
GetModelStatusResponse = _class("tensorflow.serving.GetModelStatusResponse")
