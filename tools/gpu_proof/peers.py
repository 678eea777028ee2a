"""Other packages on the arrays of a cell. Each is measured if it is installed."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tools.gpu_proof.cells import FORWARD, STEPS, Cell

RATE = 0.01
COMPILED = 2  # cells for which torch.compile is tried: it takes up to a minute
Prepare = Callable[[Any], "Peer"]


@dataclass(frozen=True)
class Peer:
    """A package on the arrays of a cell.

    Attributes:
        run: Queues the work of a batch: the forward pass, or a whole training step.
        wait: Waits for it.
    """

    run: Callable[[int], Any]
    wait: Callable[[], Any]


def installed(*names: str) -> bool:
    """Whether all of these packages are installed."""
    return all(importlib.util.find_spec(name) is not None for name in names)


def of(cell: Cell) -> dict[str, Prepare]:
    """The peers of a cell that are installed, by name."""
    found: dict[str, Prepare] = {}
    if cell.task != FORWARD and cell.task not in STEPS:
        return found
    if installed("torch"):
        if cell.task == FORWARD:
            found["torch EmbeddingBag"] = bag_forward
            if cell.judged and _compilations < COMPILED:
                found["torch.compile"] = compiled_forward
        elif cell.task in _OPTIMIZERS:
            found[f"torch EmbeddingBag + {_OPTIMIZERS[cell.task]}"] = bag_step
    if installed("cupy", "cupyx") and cell.task == FORWARD and not cell.bfloat16:
        found["CuPy sparse @ dense"] = cupy_forward
    if installed("torch", "fbgemm_gpu"):
        found["FBGEMM"] = fbgemm
    return found


_OPTIMIZERS = {"sgd": "SGD", "adagrad": "Adagrad", "lazy_adam": "SparseAdam"}
_compilations = 0


def to_numpy(output: Any) -> Any:
    """The output of a peer as a NumPy array of float32."""
    if type(output).__module__.startswith("cupy"):
        return output.get()
    return output.detach().float().cpu().numpy()


def free_memory() -> None:
    """Gives unused memory that packages hold back to the device."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
    if cupy is not None:
        cupy.get_default_memory_pool().free_all_blocks()


def _tensor(array: Any) -> Any:
    """The memory of a device array as a tensor, without a copy."""
    import numpy as np
    import torch

    if array is None:
        return None
    if array.cuda.is_emulated:
        host = array.on_host()
        tensor = torch.from_numpy(host.view(np.int16) if host.dtype == np.uint16 else host)
    else:
        tensor = torch.as_tensor(array, device="cuda")
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor


def _wait(prepared: Any) -> Callable[[], Any]:
    import torch

    return (lambda: None) if prepared.bench.cuda.is_emulated else torch.cuda.synchronize


def _inputs(prepared: Any, float_values: bool = False) -> tuple[list[Any], Any]:
    """(ids, values, offsets) of each batch, and the table, of whose type values are by default."""
    table = _tensor(prepared.table)
    batches = []
    for ids, values, splits in prepared.batches:
        offsets, weights = _tensor(splits), _tensor(values)
        ids = _tensor(ids)
        if weights is not None and not float_values:
            weights = weights.to(table.dtype)
        batches.append((ids, weights, offsets.to(ids.dtype)))
    return batches, table


def _bag(table: Any, batch: Any, sparse: bool) -> Any:
    import torch

    ids, values, offsets = batch
    return torch.nn.functional.embedding_bag(
        ids,
        table,
        offsets,
        mode="sum",
        sparse=sparse,
        per_sample_weights=values,
        include_last_offset=True,
    )


def bag_forward(prepared: Any) -> Peer:
    """The function that torch.nn.EmbeddingBag calls."""
    import torch

    batches, table = _inputs(prepared)
    return Peer(torch.no_grad()(lambda i: _bag(table, batches[i], False)), _wait(prepared))


def compiled_forward(prepared: Any) -> Peer:
    """Rows that are gathered and added in one kernel, which torch.compile writes."""
    import torch

    global _compilations
    _compilations += 1
    batches, table = _inputs(prepared)
    cell = prepared.cell

    @torch.compile(dynamic=False)
    def sum_rows(table: Any, ids: Any, values: Any) -> Any:
        rows = table[ids.view(cell.rows, cell.length)].float()
        if values is not None:
            rows = rows * values.view(cell.rows, cell.length, 1)
        return rows.sum(1)

    return Peer(
        torch.no_grad()(lambda i: sum_rows(table, *batches[i][:2])),
        _wait(prepared),
    )


def bag_step(prepared: Any) -> Peer:
    """EmbeddingBag with a sparse gradient, and an optimizer that takes it."""
    import torch

    batches, table = _inputs(prepared)
    weights = torch.nn.Parameter(table)
    grad = _tensor(prepared.grad).to(table.dtype)
    make = getattr(torch.optim, _OPTIMIZERS[prepared.cell.task])
    optimizer = make([weights], lr=RATE)

    def run(i: int) -> None:
        _bag(weights, batches[i], True).backward(grad)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Peer(run, _wait(prepared))


def cupy_forward(prepared: Any) -> Peer:
    """A CSR matrix of cuSPARSE times the table."""
    import cupy
    from cupyx.scipy.sparse import csr_matrix

    table = cupy.asarray(prepared.table)
    matrices = []
    for ids, values, splits in prepared.batches:
        data = cupy.ones(ids.shape, "f4") if values is None else cupy.asarray(values)
        # cuSPARSE has no int64 here.
        index = [cupy.asarray(a).astype("i4") for a in (ids, splits)]
        matrices.append(csr_matrix((data, *index), (prepared.cell.rows, table.shape[0])))
    wait = cupy.cuda.Device().synchronize
    return Peer(functools.partial(lambda i: matrices[i] @ table), wait)


def fbgemm(prepared: Any) -> Peer:
    """Table-batched embeddings, whose backward pass includes the update."""
    from fbgemm_gpu.split_embedding_configs import SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        EmbeddingLocation,
        OptimType,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    cell, on_host = prepared.cell, prepared.bench.cuda.is_emulated
    optimizers = {
        "adagrad": OptimType.EXACT_ADAGRAD,
        "rowwise_adagrad": OptimType.EXACT_ROWWISE_ADAGRAD,
        "lazy_adam": OptimType.ADAM,
    }
    where = (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
    if on_host:
        where = (EmbeddingLocation.HOST, ComputeDevice.CPU)
    batches, table = _inputs(prepared, float_values=True)
    bags = SplitTableBatchedEmbeddingBagsCodegen(
        [(*table.shape, *where)],
        optimizer=optimizers.get(cell.task, OptimType.EXACT_SGD),
        learning_rate=RATE,
        weights_precision=SparseType.BF16 if cell.bfloat16 else SparseType.FP32,
    )
    bags.split_embedding_weights()[0].copy_(table)
    grad = _tensor(prepared.grad)

    def run(i: int) -> Any:
        ids, values, offsets = batches[i]
        output = bags(ids, offsets, per_sample_weights=values)
        if cell.task != FORWARD:
            output.backward(grad)
        return output

    return Peer(run, _wait(prepared))
