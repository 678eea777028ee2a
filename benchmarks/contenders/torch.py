"""PyTorch on the CPU, or on a GPU (`Case.torch_device`)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks import reference
from benchmarks.contender import FORWARD, NotAvailable, Prepare, PreparedContender
from benchmarks.workload import Case

warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
torch.sparse.check_sparse_tensor_invariants.disable()


def bag_inputs(case: Case) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(ids, offsets [B + 1], values) of each batch; also sets the number of threads."""
    torch.set_num_threads(case.threads)
    return [
        tuple(torch.from_numpy(a).to(case.torch_device) for a in (b.ids, b.row_splits, b.values))
        for b in case.batches
    ]


def table_of(case: Case) -> torch.Tensor:
    """A copy in memory that PyTorch allocates (large NumPy arrays are on huge pages)."""
    table = torch.empty(case.table.shape, device=case.torch_device)
    return table.copy_(torch.from_numpy(case.table))


def _bag(ids: Any, offsets: Any, values: Any, table: torch.Tensor, sparse: bool) -> torch.Tensor:
    return torch.nn.functional.embedding_bag(
        ids,
        table,
        offsets,
        mode="sum",
        sparse=sparse,
        per_sample_weights=values,
        include_last_offset=True,
    )


def forward_bag(case: Case) -> PreparedContender:
    """The forward pass of torch.nn.functional.embedding_bag."""
    inputs, table = bag_inputs(case), table_of(case)

    @torch.no_grad()
    def run(i: int) -> torch.Tensor:
        return _bag(*inputs[i], table, False)

    return PreparedContender(run)


def forward_csr(case: Case) -> PreparedContender:
    """The product of a sparse CSR tensor and a dense tensor, computed by MKL."""
    inputs, table = bag_inputs(case), table_of(case)
    matrices = [
        torch.sparse_csr_tensor(offsets, ids, values, (len(offsets) - 1, len(table)))
        for ids, offsets, values in inputs
    ]

    @torch.no_grad()
    def run(i: int) -> torch.Tensor:
        return matrices[i] @ table

    return PreparedContender(run)


def step(
    make: Callable[[list[torch.Tensor]], torch.optim.Optimizer], case: Case
) -> PreparedContender:
    """embedding_bag with a sparse gradient, and an optimizer that accepts it."""
    inputs = bag_inputs(case)
    table = torch.nn.Parameter(table_of(case))
    grad = torch.from_numpy(case.grad_output).to(case.torch_device)
    optimizer = make([table])

    def run(i: int) -> torch.Tensor:
        output = _bag(*inputs[i], table, True)
        output.backward(grad)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return output.detach()

    return PreparedContender(run, lambda: table.detach().cpu().numpy())


def sgd(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    """SGD without momentum."""
    return torch.optim.SGD(parameters, lr=reference.LEARNING_RATE)


def adagrad(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    """Element-wise Adagrad."""
    return torch.optim.Adagrad(
        parameters,
        lr=reference.LEARNING_RATE,
        initial_accumulator_value=reference.INITIAL_ACCUMULATOR,
        eps=reference.EPSILON,
    )


def sparse_adam(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    """SparseAdam, the lazy Adam of PyTorch."""
    betas = (reference.BETA_1, reference.BETA_2)
    return torch.optim.SparseAdam(
        parameters, lr=reference.LEARNING_RATE, betas=betas, eps=reference.EPSILON
    )


def no_rowwise_adagrad(case: Case) -> PreparedContender:
    """torch.optim does not offer it."""
    raise NotAvailable("torch.optim has no row-wise Adagrad")


CONTENDERS: dict[str, dict[str, Prepare]] = {
    FORWARD: {"torch embedding_bag": forward_bag, "torch sparse CSR @ dense (MKL)": forward_csr},
    "sgd": {"torch embedding_bag + SGD": partial(step, sgd)},
    "adagrad": {"torch embedding_bag + Adagrad": partial(step, adagrad)},
    "rowwise_adagrad": {"torch": no_rowwise_adagrad},
    "lazy_adam": {"torch embedding_bag + SparseAdam": partial(step, sparse_adam)},
}
