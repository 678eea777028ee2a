"""Readers: SOURCE strings to `tf.data` batches in the layers' ragged form.

Importing this package does not import TensorFlow: opening a source of any form but TFRecord, and
reading its blocks, needs none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from twml_ops.data.block import Block, Rows
from twml_ops.data.category_ids import hash_tokens
from twml_ops.data.column_uses import ColumnUses
from twml_ops.data.errors import DataError, DataWarning
from twml_ops.data.infer import Finding
from twml_ops.data.layouts import LayoutName
from twml_ops.data.open import SCHEMES, open_source
from twml_ops.data.position import InputPosition
from twml_ops.data.schema import Feature, Schema
from twml_ops.data.schema_file import read_schema, schema_to_text
from twml_ops.data.source import Source, original_errors
from twml_ops.data.subset import sample_negatives
from twml_ops.data.validation_split import TrainingParts, split_for_validation, split_in_time

if TYPE_CHECKING:
    from twml_ops.data.pipeline import InputSettings, Pipeline
    from twml_ops.data.static import Padded, pad_to_static

_WITH_TENSORFLOW = {
    "InputSettings": "pipeline",
    "Padded": "static",
    "Pipeline": "pipeline",
    "pad_to_static": "static",
}

__all__ = [
    "SCHEMES",
    "Block",
    "ColumnUses",
    "DataError",
    "DataWarning",
    "Feature",
    "Finding",
    "InputPosition",
    "InputSettings",
    "LayoutName",
    "Padded",
    "Pipeline",
    "Rows",
    "Schema",
    "Source",
    "TrainingParts",
    "hash_tokens",
    "open_source",
    "original_errors",
    "pad_to_static",
    "read_schema",
    "sample_negatives",
    "schema_to_text",
    "split_for_validation",
    "split_in_time",
]


def __getattr__(name: str) -> Any:
    if name not in _WITH_TENSORFLOW:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WITH_TENSORFLOW[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
