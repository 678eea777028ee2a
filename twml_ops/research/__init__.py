"""Published methods that do not beat the standard models of this package, with their evidence.

`docs/published.md` has the claim of each paper, and what was measured; the benchmark is
`benchmarks/published`. They are kept for tasks that were not measured.

| method | names |
|---|---|
| DHEN (Zhang et al., 2022) | `dhen`, `DHENBlock` and its interactions, such as `FieldDot` |
| learned hash (Ghaemmaghami et al., 2022) | `learn_hash`, `LearnedHash`, `save_hash`, `load_hash` |
| towers of fields (Luo et al., 2024) | `Tower`, `TowerModule`; the option `field_towers` of `dcn` |
| Shampoo (Gupta et al., 2018) | `Shampoo` |
| snapshot ensembles (Huang et al., 2017) | `SnapshotEnsemble`, `greedy_weights` |
| architecture search | `twml_ops.research.architecture_search` |

Other packages do not import this one. `twml_ops._research` finds what files, names of models and
exports ask for.
"""

from twml_ops.research._hash_files import load_hash, save_hash
from twml_ops.research._learned_map import BYTES_PER_ID, HashPlan, plan_hash
from twml_ops.research.dhen import dhen
from twml_ops.research.dhen_block import DHEN_MODULES, DHENBlock
from twml_ops.research.field_interactions import (
    FieldAttention,
    FieldConvolution,
    FieldCross,
    FieldDot,
    FieldInteraction,
    FieldLinear,
)
from twml_ops.research.learn_hash import learn_hash
from twml_ops.research.learned_hash import LearnedHash
from twml_ops.research.member_weights import greedy_weights, log_loss_weights
from twml_ops.research.shampoo import Shampoo
from twml_ops.research.snapshot_ensemble import SnapshotEnsemble
from twml_ops.research.tower import Tower
from twml_ops.research.tower_module import TowerModule

__all__ = [
    "BYTES_PER_ID",
    "DHEN_MODULES",
    "DHENBlock",
    "FieldAttention",
    "FieldConvolution",
    "FieldCross",
    "FieldDot",
    "FieldInteraction",
    "FieldLinear",
    "HashPlan",
    "LearnedHash",
    "Shampoo",
    "SnapshotEnsemble",
    "Tower",
    "TowerModule",
    "dhen",
    "greedy_weights",
    "learn_hash",
    "load_hash",
    "log_loss_weights",
    "plan_hash",
    "save_hash",
]
