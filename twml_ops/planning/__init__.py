"""Plans where tables go, over machines and over memory and files. Needs no TensorFlow.

`predict` computes the bytes and the duration of a step for one strategy of `STRATEGIES`, `choose`
finds the sharding axis and the number of servers with the most steps per second. The formulas are
derived in docs/plan.md. `choose_tiers` divides memory among tables that do not all fit.
`shard` chooses for each of many tables the way to divide it over servers, and the servers;
`predict_plan` predicts any other choice.
`partition_fields` divides the fields of a model into towers.
"""

from twml_ops.planning.cpu_costs import CpuCosts, CpuTime, StepParts, fit_costs
from twml_ops.planning.job import BYTES_OF_NUMBER, ClusterResources, Compute, Job, Table
from twml_ops.planning.memory_tiers import TableDemand, TierChoice, choose_tiers
from twml_ops.planning.predict import Choice, Prediction, calibrate, choose, predict, servers_needed
from twml_ops.planning.recommend import Recommendation, hosts_to_break_even, recommend
from twml_ops.planning.sharding import predict_plan, shard
from twml_ops.planning.sharding_plan import WAYS, ShardedTable, ShardingPlan
from twml_ops.planning.towers import TowerPartition, mean_vectors, partition_fields
from twml_ops.planning.traffic import STRATEGIES, Message, messages

__all__ = [
    "BYTES_OF_NUMBER",
    "STRATEGIES",
    "WAYS",
    "Choice",
    "ClusterResources",
    "Compute",
    "CpuCosts",
    "CpuTime",
    "Job",
    "Message",
    "Prediction",
    "Recommendation",
    "ShardedTable",
    "ShardingPlan",
    "StepParts",
    "Table",
    "TableDemand",
    "TierChoice",
    "TowerPartition",
    "calibrate",
    "choose",
    "choose_tiers",
    "fit_costs",
    "hosts_to_break_even",
    "mean_vectors",
    "messages",
    "partition_fields",
    "predict",
    "predict_plan",
    "recommend",
    "servers_needed",
    "shard",
]
