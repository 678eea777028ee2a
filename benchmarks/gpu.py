"""`python -m benchmarks.gpu`: measures on a GPU, and writes a table and the raw results.

It times the forward pass and the training step of twml_ops, with the table on the GPU and on the
host, beside TensorFlow's GPU ops, PyTorch and FBGEMM, and a model through `fit`. Batches and
gradients are in the memory of the GPU, except for tables on the host. All contenders are
checked against NumPy first.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import importlib.util
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tensorflow as tf
import typer

from benchmarks import bandwidth_floor, machine, model, reference, timing
from benchmarks.contender import FORWARD, RULES, TWML_OPS, NotAvailable, Prepare, PreparedContender
from benchmarks.contenders import tf as tf_contenders
from benchmarks.contenders import twml as twml_contenders
from benchmarks.workload import Case, Workload, make_case
from twml_ops import placement
from twml_ops.ops._library import library

SKEWS = {"Zipf 1.05": 1.05, "uniform": 0.0}
MODEL = "model"
TASKS = (FORWARD, *RULES, MODEL)
QUICK_SKEWS = {"uniform": 0.0}
QUICK = Workload(input_dim=2**9, units=16, batch_size=8, row_length=6)
ON_HOST = f"{TWML_OPS}, table on the host"
CALLS = 10  # calls that are timed together: work on a GPU is queued
PACKAGES = (*machine.PACKAGES, "fbgemm-gpu", "nvidia-cuda-runtime-cu12")
Save = Callable[[Mapping[str, Any]], None]
_TORCH = {"torch": "benchmarks.contenders.torch", "fbgemm_gpu": "benchmarks.contenders.fbgemm"}


def main(
    quick: Annotated[bool, typer.Option(help="Tiny sizes, as a test.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each contender.")] = 11,
    task: Annotated[
        list[str] | None, typer.Option(help=f"Measure this alone, of {', '.join(TASKS)}. Repeat.")
    ] = None,
    ids: Annotated[
        str | None, typer.Option(help=f"Measure this distribution alone, of {', '.join(SKEWS)}.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of results.json and results.md.")] = Path(
        "out/gpu"
    ),
) -> None:
    """Measures twml_ops and every installed peer on the first GPU."""
    for option, given, known in (("task", task, TASKS), ("ids", ids and [ids], SKEWS)):
        unknown = sorted(set(given or ()) - set(known))
        if unknown:
            raise typer.BadParameter(f"--{option} must be of {', '.join(known)}, got {unknown[0]}")
    problem = library.cuda.problem() if tf.config.list_physical_devices("GPU") else "no GPU"
    if problem is not None:
        raise typer.BadParameter(f"TensorFlow cannot run the CUDA kernels: {problem}")
    # TensorFlow would otherwise leave no memory to PyTorch.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    workload = QUICK if quick else Workload()
    command = "python -m benchmarks.gpu" + (" --quick" if quick else "")
    results = {
        "machine": machine.describe(command, PACKAGES),
        "gpu": tf.config.experimental.get_device_details(
            tf.config.list_physical_devices("GPU")[0]
        ).get("device_name", "unknown"),
    }

    def save(part: str, found: Mapping[str, Any]) -> None:
        """Writes what has been measured so far: a lease of a GPU can end before the run does."""
        results[part] = found
        (out / "results.json").write_text(json.dumps(results, indent=1, default=str))
        (out / "results.md").write_text(render(results))

    out.mkdir(parents=True, exist_ok=True)
    skews = {n: s for n, s in (QUICK_SKEWS if quick else SKEWS).items() if ids in (None, n)}
    tasks = [t for t in TASKS if task is None or t in task]
    of_kernels = [t for t in tasks if t != MODEL]
    measure_kernels(workload, rounds, skews, of_kernels, save=functools.partial(save, "kernels"))
    if MODEL in tasks:
        measure_model(workload, rounds, quick, save=functools.partial(save, "model"))


def contenders(task: str) -> dict[str, tuple[str, Prepare]]:
    """The contenders of a task.

    Args:
        task: FORWARD, or a rule of RULES for a whole training step.

    Returns:
        name -> (the device of its table, how to prepare it).
    """
    ours = twml_contenders.CONTENDERS[task][TWML_OPS]
    found = {TWML_OPS: ("GPU:0", ours), ON_HOST: ("CPU:0", ours)}
    offered = dict(tf_contenders.CONTENDERS.get(task, {}))
    for package, module in _TORCH.items():
        if importlib.util.find_spec(package) is not None:
            offered |= importlib.import_module(module).CONTENDERS.get(task, {})
    return found | {name: ("GPU:0", prepare) for name, prepare in offered.items()}


def measure_kernels(
    workload: Workload,
    rounds: int,
    skews: Mapping[str, float],
    tasks: Sequence[str] = (FORWARD, *RULES),
    number: int = 8,
    save: Save = lambda found: None,
) -> dict[str, Any]:
    """Times every contender on the same batches.

    Args:
        workload: Sizes; `skew` is not used.
        rounds: Turns of each contender.
        skews: Name of a distribution of ids -> Zipf exponent.
        tasks: FORWARD, or rules of RULES.
        number: Batches of each distribution of ids.
        save: Receives the results after each task.

    Returns:
        Seconds per call in `times[task][distribution][contender]`, `skipped[task][contender]` with
        the reason, the lower bounds `floors[task][distribution]` in seconds, and the bandwidth of
        the memory in bytes/s.
    """
    bandwidth = memory_bandwidth(2**22 if workload == QUICK else 2**30)
    times: dict[str, dict[str, dict[str, Any]]] = {task: {} for task in tasks}
    skipped: dict[str, dict[str, str]] = {task: {} for task in times}
    floors: dict[str, dict[str, float]] = {task: {} for task in times}
    results = {
        "workload": asdict(workload),
        "bandwidth": bandwidth,
        "times": times,
        "skipped": skipped,
        "floors": floors,
    }
    save(results)
    has_cuda = importlib.util.find_spec("torch") is not None and _torch_has_cuda()
    for name, skew in skews.items():
        case = make_case(workload, workload.replace(skew=skew).batches(number), threads=2)
        case = replace(case, torch_device="cuda" if has_cuda else "cpu")
        for task in times:
            floors[task][name] = _floor(task, case, bandwidth)
            prepared = prepare_all(task, case, skipped[task])
            found = timing.interleave(prepared, range(number), rounds=rounds)
            times[task][name] = {
                n: {k: v / CALLS for k, v in asdict(t).items() if k in ("median", "lower", "upper")}
                for n, t in found.items()
            }
            del prepared
            gc.collect()
            save(results)
    return results


def prepare_all(
    task: str, case: Case, skipped: dict[str, str]
) -> dict[str, Callable[[int], object]]:
    """Prepares and checks the contenders of a task.

    Args:
        task: See `contenders`.
        case: The inputs.
        skipped: Receives the reasons why contenders cannot be timed.

    Returns:
        name -> a function that runs CALLS batches, from the one it is given, and waits for them.
    """
    runs = {}
    for name, (device, prepare) in contenders(task).items():
        if _uses_torch(prepare) and case.torch_device != "cuda":
            skipped[name] = "PyTorch has no CUDA device"
            continue
        try:
            with tf.device(device):
                prepared = prepare(case)
                on_host = PreparedContender(functools.partial(_numpy, prepared.run), prepared.table)
                why = reference.check(on_host, case, None if task == FORWARD else task)
        except NotAvailable as e:
            why = str(e)
        except Exception as e:  # a peer that does not work here must not end the others' run
            if name in (TWML_OPS, ON_HOST):
                raise
            why = f"{type(e).__name__}: {str(e)[:200]}"
        if why:
            skipped[name] = why
        else:
            runs[name] = functools.partial(_run_and_wait, prepared.run, device, len(case.batches))
    return runs


def memory_bandwidth(size: int) -> float:
    """The bandwidth of the memory of the GPU.

    Args:
        size: Bytes of the array that is added to another one.

    Returns:
        Bytes/s that an addition in place reads and writes, the best of ten.
    """
    with tf.device("GPU:0"):
        to, other = (tf.Variable(tf.zeros([size // 4])) for _ in range(2))

        @tf.function
        def add() -> None:
            for _ in range(CALLS):
                to.assign_add(other)

        def run(_: int) -> None:
            add()
            _wait()

        found = timing.interleave({"add": run}, [0], rounds=10)
    return CALLS * 3 * size / found["add"].lower


def measure_model(
    workload: Workload, rounds: int, quick: bool, save: Save = lambda found: None
) -> dict[str, Any]:
    """Times `fit` of the model of docs/performance.md at the published batch sizes.

    Args:
        workload: Sizes.
        rounds: Fits of each contender.
        quick: Whether a few steps are enough.
        save: Receives the results after each placement.

    Returns:
        The results of `benchmarks.model.measure` with the tables on the host and on the GPU.
    """
    sizes = {"steps": 20, "stock_steps": 2, "batch_sizes": (8,)} if quick else {}
    found = {}
    for name, place in (("host", placement.REPLICATED), ("GPU", placement.DevicePlacement())):
        with placement.placement_scope(place), contextlib.redirect_stdout(None):
            found[name] = model.measure(
                workload, rounds=rounds, rules=("adagrad",), log=lambda _: None, **sizes
            )
        save(found)
    return found


def render(results: Mapping[str, Any]) -> str:
    """The results as Markdown tables.

    Args:
        results: What `main` writes as JSON.
    """
    kernels, about = results["kernels"], results["machine"]
    lines = [
        f"# {results['gpu']}",
        "",
        f"`{about['command']}`, {about['date']}, memory {kernels['bandwidth'] / 1e9:.0f} GB/s,",
        f"workload {kernels['workload']}",
        "",
    ]
    for task, by_ids in kernels["times"].items():
        for ids, found in by_ids.items():
            ours, floor = found[TWML_OPS]["median"], kernels["floors"][task][ids]
            lines += [
                f"## {task}, {ids} ids",
                "",
                f"| contender | µs | of {TWML_OPS} | of the bandwidth |",
                "|---|---|---|---|",
            ]
            for name, t in sorted(found.items(), key=lambda item: item[1]["median"]):
                median = t["median"]
                lines.append(
                    f"| {name} | {1e6 * median:.0f} | {median / ours:.2f} | {floor / median:.2f} |"
                )
            lines.append("")
        lines += [f"- {name}: {why}" for name, why in kernels["skipped"][task].items()] + [""]
    lines += ["## Samples/s through `fit`", "", "| table | B | contender | samples/s |"]
    lines.append("|---|---|---|---|")
    for place, found in results.get("model", {}).items():
        for by_size in found["times"].values():
            for size, times in by_size.items():
                for name, t in times.items():
                    lines.append(f"| {place} | {size} | {name} | {int(size) / t['median']:,.0f} |")
        lines += [f"- {name}: {why}" for name, why in found["wrong"].items()]
    return "\n".join(lines) + "\n"


def _floor(task: str, case: Case, bandwidth: float) -> float:
    both, dim = bandwidth_floor.Bandwidth(bandwidth, bandwidth), case.table.shape[1]
    if task == FORWARD:
        of_batches = [bandwidth_floor.forward_seconds(b, dim, both) for b in case.batches]
    else:
        of_batches = [bandwidth_floor.step_seconds(b, dim, task, both) for b in case.batches]
    return float(np.mean(of_batches))


def _numpy(run: Callable[[int], Any], i: int) -> np.ndarray:
    output = run(i)
    return np.asarray(output.cpu() if type(output).__module__ == "torch" else output)


def _run_and_wait(run: Callable[[int], Any], device: str, number: int, i: int) -> None:
    with tf.device(device):
        for call in range(CALLS):
            output = run((i + call) % number)
    _wait(output)


def _wait(output: Any = None) -> None:
    """Waits for all work on the GPU."""
    if type(output).__module__ == "torch":
        import torch

        torch.cuda.synchronize()
    else:
        tf.test.experimental.sync_devices()


def _uses_torch(prepare: Prepare) -> bool:
    function = prepare.func if isinstance(prepare, functools.partial) else prepare
    return function.__module__ in _TORCH.values()


def _torch_has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())


if __name__ == "__main__":
    typer.run(main)
