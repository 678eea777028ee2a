"""FBGEMM's table-batched embeddings, whose backward pass updates the table."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    EmbeddingLocation,
    OptimType,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from benchmarks import reference
from benchmarks.contender import FORWARD, NotAvailable, Prepare, PreparedContender
from benchmarks.contenders.torch import bag_inputs
from benchmarks.workload import Case


def _bags(case: Case, optimizer: OptimType) -> Any:
    rows, units = case.table.shape
    where = (EmbeddingLocation.HOST, ComputeDevice.CPU)
    if case.torch_device == "cuda":
        where = (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
    bags = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, units, *where)],
        optimizer=optimizer,
        learning_rate=reference.LEARNING_RATE,
        eps=reference.EPSILON,
    )
    bags.split_embedding_weights()[0].copy_(torch.from_numpy(case.table))
    return bags


def forward(case: Case) -> PreparedContender:
    """The forward pass alone."""
    inputs, bags = bag_inputs(case), _bags(case, OptimType.EXACT_SGD)

    @torch.no_grad()
    def run(i: int) -> torch.Tensor:
        ids, offsets, values = inputs[i]
        return bags(ids, offsets, per_sample_weights=values)

    return PreparedContender(run)


def step(optimizer: OptimType, case: Case) -> PreparedContender:
    """The forward pass, and a backward pass that includes the update."""
    inputs, bags = bag_inputs(case), _bags(case, optimizer)
    grad = torch.from_numpy(case.grad_output).to(case.torch_device)
    if optimizer != OptimType.EXACT_SGD:
        bags.split_optimizer_states()[0][0].fill_(reference.INITIAL_ACCUMULATOR)

    def run(i: int) -> torch.Tensor:
        ids, offsets, values = inputs[i]
        output = bags(ids, offsets, per_sample_weights=values)
        output.backward(grad)
        return output.detach()

    return PreparedContender(run, lambda: bags.split_embedding_weights()[0].detach().cpu().numpy())


def no_adam(case: Case) -> PreparedContender:
    """FBGEMM offers Adam on GPUs only."""
    raise NotAvailable("FBGEMM has no Adam on the CPU")


CONTENDERS: dict[str, dict[str, Prepare]] = {
    FORWARD: {"FBGEMM": forward},
    "sgd": {"FBGEMM": partial(step, OptimType.EXACT_SGD)},
    "adagrad": {"FBGEMM": partial(step, OptimType.EXACT_ADAGRAD)},
    "rowwise_adagrad": {"FBGEMM": partial(step, OptimType.EXACT_ROWWISE_ADAGRAD)},
    "lazy_adam": {"FBGEMM": no_adam},
}
