"""Differentiable search of networks: widths, depth, rows of tables and interactions.

A `SearchSpace` says what may be chosen. `search` trains all its networks at once, with shared
weights, and the probabilities of the candidates with them. `SearchSpace.model` builds the network
that it found, and `SearchSpace.options` gives the options with which `research.dhen` builds it.
"""

from twml_ops.research.architecture_search.choice import Choice
from twml_ops.research.architecture_search.choices import (
    DenseWidth,
    FieldRows,
    FieldWidths,
    Interaction,
)
from twml_ops.research.architecture_search.costs import COSTS, Costs
from twml_ops.research.architecture_search.measures import count_flops
from twml_ops.research.architecture_search.search import Epoch, SearchResult, Settings, search
from twml_ops.research.architecture_search.space import SearchSpace
from twml_ops.research.architecture_search.supernet import Supernet

__all__ = [
    "COSTS",
    "Choice",
    "Costs",
    "DenseWidth",
    "Epoch",
    "FieldRows",
    "FieldWidths",
    "Interaction",
    "SearchResult",
    "SearchSpace",
    "Settings",
    "Supernet",
    "count_flops",
    "search",
]
