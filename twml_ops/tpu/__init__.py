"""Models of this package on TPUs: whether they compile, and tables in `TPUEmbedding`."""

from twml_ops.tpu.check import Verdict, check
from twml_ops.tpu.chips import CHIPS, Chip
from twml_ops.tpu.elsewhere import looked_up, tables_elsewhere
from twml_ops.tpu.embedding import (
    embedding_for,
    feature_configs,
    host_lookup,
    lookup_inputs,
    on_host,
    tables_from,
    tables_to,
)
from twml_ops.tpu.optimizers import table_optimizer
from twml_ops.tpu.step import training_step

__all__ = [
    "CHIPS",
    "Chip",
    "Verdict",
    "check",
    "embedding_for",
    "feature_configs",
    "host_lookup",
    "looked_up",
    "lookup_inputs",
    "on_host",
    "table_optimizer",
    "tables_elsewhere",
    "tables_from",
    "tables_to",
    "training_step",
]
