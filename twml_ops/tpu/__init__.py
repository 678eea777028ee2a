"""TPUs: compiling a training step without a TPU, and tables in TensorFlow's `TPUEmbedding`."""

from twml_ops.tpu.check import CompileReport, TableMemory, check
from twml_ops.tpu.chips import CHIPS, GPUS, Chip
from twml_ops.tpu.compile_subprocess import Compiled
from twml_ops.tpu.embedding import (
    copy_dense_weights,
    copy_tables_from_embedding,
    copy_tables_to_embedding,
    create_embedding,
    feature_configs,
    host_lookup,
    lookup_inputs,
)
from twml_ops.tpu.external_lookup import external_tables, use_lookups
from twml_ops.tpu.optimizers import table_optimizer
from twml_ops.tpu.step import CompileProblem, training_step
from twml_ops.tpu.table_layers import map_on_host, table_inputs

__all__ = [
    "CHIPS",
    "GPUS",
    "Chip",
    "CompileProblem",
    "CompileReport",
    "Compiled",
    "TableMemory",
    "check",
    "copy_dense_weights",
    "copy_tables_from_embedding",
    "copy_tables_to_embedding",
    "create_embedding",
    "external_tables",
    "feature_configs",
    "host_lookup",
    "lookup_inputs",
    "map_on_host",
    "table_inputs",
    "table_optimizer",
    "training_step",
    "use_lookups",
]


def __dir__() -> list[str]:
    return sorted(__all__)
