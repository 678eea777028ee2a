"""`twml-ops gpu-check`: compiles the training step of a model for a GPU."""

from __future__ import annotations

from typing import Annotated

import typer

from twml_ops.cli.options import Debug


def gpu_check(
    model: Annotated[
        str,
        typer.Argument(
            help="A model of the package (with the features of Criteo), the folder of a run, a "
            ".keras file, or FILE.py:NAME of a Keras model or of a function that returns one.",
            show_default=False,
        ),
    ],
    gpu: Annotated[str, typer.Option(help="GPU: A100, H100 or L4.")] = "H100",
    batch_size: Annotated[int, typer.Option(min=1, help="Examples in a step.")] = 1024,
    max_entries: Annotated[
        int, typer.Option(min=1, help="Maximum entries per row of inputs of unknown width.")
    ] = 32,
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
    from twml_ops.cli.tpu_check import check_model

    check_model(model, gpu, None, batch_size, max_entries, as_json)
