"""Keras layers for very sparse batches, for interactions of features, and for calibration."""

from twml_ops._keras import clone_model
from twml_ops._research import register_keras_classes
from twml_ops.layers._category_counts import CategoryCounts
from twml_ops.layers._id_row_map import IdCounts
from twml_ops.layers._prefetch import prefetch_rows
from twml_ops.layers._tables import save_model
from twml_ops.layers.boosted_trees import BoostedTrees
from twml_ops.layers.category_rows import CategoryRows
from twml_ops.layers.choose_crosses import choose_crosses
from twml_ops.layers.count_statistics import CountStatistics
from twml_ops.layers.cross import Cross
from twml_ops.layers.dynamic_lookup import DynamicLookup
from twml_ops.layers.dynamic_sparse_linear import DynamicSparseLinear
from twml_ops.layers.field_embedding import FieldEmbedding
from twml_ops.layers.field_logarithms import FieldLogarithms, FieldMoments
from twml_ops.layers.field_quantiles import FieldQuantiles
from twml_ops.layers.grouped_sparse_linear import GroupedSparseLinear, SparseTable
from twml_ops.layers.hashing_discretizer import HashingDiscretizer
from twml_ops.layers.interactions import DotInteraction, FactorizationMachine
from twml_ops.layers.isotonic_calibration import IsotonicCalibration
from twml_ops.layers.max_norm import MaxNorm
from twml_ops.layers.mdl_discretizer import MDLDiscretizer
from twml_ops.layers.online_standardize import OnlineStandardize
from twml_ops.layers.percentile_discretizer import PercentileDiscretizer
from twml_ops.layers.platt_scaling import PlattScaling
from twml_ops.layers.sparse_linear import SparseLinear
from twml_ops.layers.string_hash import StringHash
from twml_ops.layers.target_statistics import TargetStatistics
from twml_ops.placement.tiered import Tiered

__all__ = [
    "BoostedTrees",
    "CategoryCounts",
    "CategoryRows",
    "CountStatistics",
    "Cross",
    "DotInteraction",
    "DynamicLookup",
    "DynamicSparseLinear",
    "FactorizationMachine",
    "FieldEmbedding",
    "FieldLogarithms",
    "FieldMoments",
    "FieldQuantiles",
    "GroupedSparseLinear",
    "HashingDiscretizer",
    "IdCounts",
    "IsotonicCalibration",
    "MDLDiscretizer",
    "MaxNorm",
    "OnlineStandardize",
    "PercentileDiscretizer",
    "PlattScaling",
    "SparseLinear",
    "SparseTable",
    "StringHash",
    "TargetStatistics",
    "Tiered",
    "choose_crosses",
    "clone_model",
    "prefetch_rows",
    "save_model",
]

register_keras_classes()


def __dir__() -> list[str]:
    return sorted(__all__)
