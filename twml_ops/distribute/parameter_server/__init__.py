"""Training with parameter servers, which have the tables and multiply for the workers.

The files, by the question that they answer:

- `cluster`: which processes a run has, and how they connect;
- `failures`: what happens when a server or a worker dies;
- `state`, `tables`: which values are on the servers;
- `placement`, `products`: how a layer's product with a table is computed on them;
- `exchange`, `encoding`, `transport`: which messages a step sends, how many bytes, and how they get
  there;
- `step`, `updates`, `synchronous_workers`: what a step does, who applies an update, and how several
  workers make one;
- `checkpoint`, `restore`: how a checkpoint is written and read;
- `optimizer_slots`: slots of an earlier training, and slots of an ordinary model;
- `weight_averages`: averages of the weights, on the servers;
- `chief_decisions`: what the chief decides for all processes;
- `trainer`, `chief_built_model`: the public interface.
"""

from twml_ops.distribute.parameter_server.chief_built_model import ChiefBuiltModel
from twml_ops.distribute.parameter_server.chief_decisions import ChiefDecisions
from twml_ops.distribute.parameter_server.cluster import Cluster, ClusterError, serve
from twml_ops.distribute.parameter_server.failures import exit_on_cluster_error
from twml_ops.distribute.parameter_server.optimizer_slots import SavedSlots
from twml_ops.distribute.parameter_server.restore import iter_checkpoints
from twml_ops.distribute.parameter_server.trainer import FitResult, HybridTrainer

__all__ = [
    "ChiefBuiltModel",
    "ChiefDecisions",
    "Cluster",
    "ClusterError",
    "FitResult",
    "HybridTrainer",
    "SavedSlots",
    "exit_on_cluster_error",
    "iter_checkpoints",
    "serve",
]
