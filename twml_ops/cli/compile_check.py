"""`twml-ops tpu-check` and `gpu-check`: compile the training step of a model for a chip."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twml_ops.cli.options import Debug
from twml_ops.training.errors import UserError

if TYPE_CHECKING:
    import tensorflow as tf
    from rich.console import Console

    from twml_ops.data import LayoutName, Schema
    from twml_ops.tpu import CompileReport


Model = Annotated[
    str,
    typer.Argument(
        help="A model of the package (with the features of Criteo), the folder of a run, a "
        ".keras file, or FILE.py:NAME of a Keras model or of a function that returns one.",
        show_default=False,
    ),
]
MaxEntries = Annotated[
    int, typer.Option(min=1, help="Maximum entries per row of inputs of unknown width.")
]


def tpu_check(
    model: Model,
    chip: Annotated[str, typer.Option(help="TPU chip: v4, v5e, v5p or v6e.")] = "v5e",
    topology: Annotated[
        str | None,
        typer.Option(
            help="Topology of the slice, such as 4x4. Default: one host.", show_default=False
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples per device in a step.")] = 1024,
    max_entries: MaxEntries = 32,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")] = False,
    debug: Debug = False,
) -> None:
    """Compiles the whole training step with the TPU compiler. No TPU is needed.

    Prints which layer does not compile and why, or else the operations, the bytes, the minimum time
    of a step, the memory, and the size of the tables if they are divided among the devices. The
    exit status is 1 if the step does not compile or does not fit in memory. Requires the packages
    of twml_ops[tpu].
    """
    check_model(model, chip, topology, batch_size, max_entries, as_json)


def gpu_check(
    model: Model,
    gpu: Annotated[str, typer.Option(help="GPU: A100, H100 or L4.")] = "H100",
    batch_size: Annotated[int, typer.Option(min=1, help="Examples in a step.")] = 1024,
    max_entries: MaxEntries = 32,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")] = False,
    debug: Debug = False,
) -> None:
    """Compiles the whole training step with XLA for a GPU. No GPU is needed.

    Prints which layer does not compile and why, or else the operations, the bytes, an estimate of a
    step's time, the memory, and whether the tables are updated in place. Operations and bytes are
    counted before XLA fuses operations, so the estimate is not a lower bound. The exit status is 1
    if the step does not compile or does not fit in memory. Requires twml_ops[gpu-check] (jax,
    jax-cuda12-plugin, jax-cuda12-pjrt and nvidia-cuda-nvcc-cu12), in an environment of its own.
    """
    check_model(model, gpu, None, batch_size, max_entries, as_json)


def check_model(
    model: str,
    chip: str,
    topology: str | None,
    batch_size: int,
    max_entries: int,
    as_json: bool,
) -> None:
    """Compiles a training step for a TPU or GPU, and prints what the compiler reports.

    Args:
        model: name, folder or file of the model; see `load_model`.
        chip: name of the chip.
        topology: topology of the slice; None: one host.
        batch_size: number of examples of a device in a step.
        max_entries: entries of a row in inputs of unknown width.
        as_json: print JSON instead of a table.

    Raises:
        UserError: there is no such model.
        SystemExit: with status 1, if the step does not compile or does not fit in memory.
    """
    from twml_ops import tpu
    from twml_ops.cli.console import make_console, print_json

    console = make_console()
    with console.status("compiling"):
        report = tpu.check(
            load_model(model),
            chip,
            batch_size=batch_size,
            max_entries=max_entries,
            topology=topology,
        )
    if as_json:
        values = {**dataclasses.asdict(report), "fits": report.fits, "seconds": report.seconds}
        values["seconds_are_lower_bound"] = report.seconds_are_lower_bound
        values["in_place"] = report.in_place
        values["chip"] = chip
        values["cuda_kernels"] = CUDA_KERNELS if report.chip.gpu else None
        values["problem"] = report.problem._asdict() if report.problem else None
        print_json(values)
    else:
        print_compile_report(console, report, batch_size)
    if not report.fits:
        raise SystemExit(1)


def load_model(reference: str) -> tf.keras.Model:
    """Loads a model.

    Args:
        reference: name of a model of the package, folder of a run, .keras file, or `FILE.py:NAME`.

    Raises:
        UserError: `reference` is none of these.
        ValueError: the file of a reference has no such model.
    """
    import tensorflow as tf

    # Importing them registers the classes that a .keras file names.
    from twml_ops import layers, models, optimizers  # noqa: F401
    from twml_ops.data import Schema, tune_pipeline
    from twml_ops.training.trained_run import TrainedRun

    if reference in models.names():
        build = models.get(reference)
        numbers, categories = (f"I{i}" for i in range(1, 14)), (f"C{i}" for i in range(1, 27))
        criteo = Schema(tuple(numbers), tuple(categories), 0, "a click")
        return build(criteo, _random_batch(criteo, models.layout_of(build)))
    path = Path(reference)
    if path.is_dir():
        return TrainedRun(path).model
    if path.suffix == ".keras" and path.is_file():
        return tf.keras.models.load_model(str(path))
    if ":" not in reference:
        raise UserError(
            f"no model {reference!r}: expected one of {', '.join(models.names())}, the folder of a "
            "run, a .keras file, or FILE.py:NAME"
        )
    return tune_pipeline.load_object(reference, tf.keras.Model, "a Keras model")


def _random_batch(schema: Schema, layout: LayoutName, rows: int = 512) -> tf.data.Dataset:
    """One batch of random features, on which the first layers of a model are adapted."""
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(0)
    columns = len(schema.continuous)
    numbers = rng.normal(size=(rows, columns)).astype(np.float32)
    categories = rng.integers(0, 2**62, (rows, len(schema.categorical)))
    if layout != "ragged":
        present = np.ones((rows, columns), bool)
        features = {"continuous": numbers, "continuous_present": present, "categorical": categories}
        if layout == "keyed_fields":
            features["row_keys"] = np.arange(rows)
    else:
        ragged = tf.RaggedTensor.from_tensor
        features = {
            "continuous_ids": ragged(np.tile(np.arange(columns), (rows, 1))),
            "continuous_values": ragged(numbers),
            "categorical_ids": ragged(categories),
        }
    labels = rng.integers(0, 2, (rows, 1)).astype(np.float32)
    return tf.data.Dataset.from_tensors((features, labels))


# What was run on a card, on which and when; docs/gpu.md has the details.
CUDA_KERNELS = "the CUDA kernels of twml_ops have not run on a GPU yet; see docs/gpu.md"


def print_compile_report(console: Console, report: CompileReport, batch_size: int) -> None:
    """Prints what the compiler reports: the cost of a step, or why it does not compile.

    Args:
        console: where to print.
        report: the result of `tpu.check`.
        batch_size: number of examples of a device in a step.
    """
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    chip, compiled = report.chip, report.compiled
    if compiled is None:
        assert report.problem is not None
        where = report.problem.layer
        console.print(f"[bold red]does not compile[/] for {chip.name}")
        console.print(f"layer   {escape(where) if where else 'unknown'}")
        console.print(f"reason  {escape(report.problem.why)}", soft_wrap=True)
        return
    console.print(
        f"[bold green]compiles[/] for {compiled.device} ({chip.name}:{report.topology}, "
        f"{compiled.devices} devices), {batch_size:,} examples per device in a step"
    )
    time = "step, minimum" if report.seconds_are_lower_bound else "step, estimate"
    bound = "memory" if report.memory_seconds >= report.compute_seconds else "compute"
    share = compiled.memory / chip.hbm
    rows = [
        (
            "FLOPs",
            f"{compiled.flops:,.0f}",
            f"{report.compute_seconds * 1e3:.3f} ms at peak FLOP/s",
        ),
        (
            "bytes",
            f"{compiled.bytes:,.0f}",
            f"{report.memory_seconds * 1e3:.3f} ms at peak bandwidth",
        ),
        (time, f"{report.seconds * 1e3:.3f} ms", f"{bound}-bound"),
        ("tables", "in place" if report.in_place else "copied in every step", ""),
        ("memory", _mib(compiled.memory), f"{share:.1%} of {chip.hbm >> 30} GiB"),
        ("  weights, slots, batch", _mib(compiled.arguments), ""),
        ("  temporary", _mib(compiled.temporary), ""),
        ("  results, program", _mib(compiled.outputs + compiled.code), ""),
    ]
    table = Table(box=None, show_header=False, pad_edge=False)
    for justify in ("left", "right", "left"):
        table.add_column(justify=justify)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if report.tables:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("table")
        for column in (
            "rows",
            "units",
            "with slots",
            f"share of one of {compiled.devices} devices",
        ):
            table.add_column(column, justify="right")
        for t in report.tables:
            sizes = _mib(t.bytes), _mib(t.share)
            table.add_row(escape(t.name), f"{t.rows:,}", f"{t.units:,}", *sizes)
        console.print(table)
    if not report.fits:
        console.print("[bold red]does not fit[/] in memory with the whole tables on each device")
    if not report.seconds_are_lower_bound:
        console.print(
            "[dim]FLOPs and bytes are counted before XLA fuses operations, so a step may take less "
            "than the estimate[/]"
        )
    console.print(f"[dim]peak FLOP/s, bandwidth and memory of the chip: {chip.source}[/]")
    if chip.gpu is not None:
        console.print(f"[dim]this compiles for a GPU, and runs nothing: {CUDA_KERNELS}[/]")


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"
