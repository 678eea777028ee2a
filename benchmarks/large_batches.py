"""Log loss by batch size, with unscaled and scaled learning rates: docs/large_batches.md.

    python -m benchmarks.large_batches flights criteo:PATH

Every run makes the same number of passes over the data from the same initial weights, so larger
batches mean fewer steps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import tensorflow as tf
import typer
from matplotlib.figure import Figure

from benchmarks import machine, tables
from twml_ops import models
from twml_ops.analysis import scoring
from twml_ops.optimizers import LinearScalingWarmup
from twml_ops.training.model import learning_rate_of, make_optimizer
from twml_ops.training.sources import open_pair

SIZES = (1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 17)
SCALINGS = ("none", "sqrt", "linear")
OPTIMIZER = "adagrad"
WARMUP = 0.25  # as a fraction of the steps
READ_BATCH_SIZE = 8192
DOCS = Path(__file__).resolve().parents[1] / "docs"


def losses(source: str, epochs: int, seed: int, sizes: tuple[int, ...] = SIZES) -> dict[str, Any]:
    """Trains with every scaling and batch size, and evaluates on the held-out part of `source`.

    Args:
        source: as of `twml-ops train --data`.
        epochs: passes over the training data.
        seed: the seed of the initial weights and of the order of the examples.
        sizes: batch sizes.

    Returns:
        The number of training `examples`, and `losses[scaling][batch size]`.
    """
    train, held_out = open_pair(source, None)
    examples = train.num_examples()
    tf.keras.utils.set_random_seed(seed)
    model = models.get("sparse_mlp")(train.schema, train.dataset(READ_BATCH_SIZE))
    initial = model.get_weights()
    found: dict[str, Any] = {scaling: {} for scaling in SCALINGS}
    for size in sizes:
        steps = epochs * -(-examples // size)
        for scaling in SCALINGS:
            if size == sizes[0] and scaling != SCALINGS[0]:
                found[scaling][size] = found[SCALINGS[0]][size]  # the factor is 1
                continue
            tf.keras.utils.set_random_seed(seed)
            model.set_weights(initial)
            model.compile(
                _optimizer(size, sizes[0], steps, scaling),
                "binary_crossentropy",
                jit_compile=False,
            )
            batches = train.dataset(size, shuffle=True, seed=seed)
            model.fit(batches, epochs=epochs, shuffle=False, verbose=0)
            scores = scoring.score(model, held_out.dataset(READ_BATCH_SIZE))
            found[scaling][size] = scoring.metrics(scores)["log_loss"]
            print(f"{source} batch {size:,} scaling {scaling}: {found[scaling][size]:.4f}")
    return {"examples": examples, "losses": found}


def _optimizer(size: int, base: int, steps: int, scaling: str) -> Any:
    def scaled(rate: Any) -> Any:
        if scaling == "none":
            return rate
        warmup = int(WARMUP * steps)
        return LinearScalingWarmup(rate, size, base, warmup, scaling)  # type: ignore[arg-type]

    return make_optimizer(OPTIMIZER, learning_rate_of(OPTIMIZER), steps, scaled)


def draw(result: dict[str, Any], path: Path) -> None:
    """Plots the curves, with one panel per source."""
    found = result["sources"]
    figure = Figure(figsize=(4.2 * len(found), 3.2), layout="constrained")
    for panel, (source, one) in zip(
        figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True
    ):
        for scaling, by_size in one["losses"].items():
            x = [int(size) for size in by_size]
            panel.plot(x, list(by_size.values()), marker="o", markersize=3, label=_LABELS[scaling])
        panel.set_xscale("log", base=2)
        usual = one["losses"]["none"].values()
        top = max(usual) + (max(usual) - min(usual)) / 2  # diverged runs are outside the plot
        panel.set_ylim(min(usual) - 0.004, top)
        panel.set_title(_short(source), fontsize=10)
        panel.set_xlabel("batch size", fontsize=9)
        panel.set_ylabel("log loss, held out", fontsize=9)
        panel.tick_params(labelsize=8)
        panel.grid(alpha=0.3)
        panel.legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def markdown(result: dict[str, Any]) -> str:
    """The tables, the link to the plot, and the machine."""
    parts = [
        f"`sparse_mlp` with Adagrad, {result['epochs']} passes over the training data, the same "
        "initial weights and order; the rate, 0.04 at batch size "
        f"{SIZES[0]:,}, falls linearly to 0. Log loss on the data held out:"
    ]
    for source, one in result["sources"].items():
        sizes = list(one["losses"]["none"])
        head = f"| {_short(source)} ({one['examples']:,}) | " + " | ".join(
            f"{int(size):,}" for size in sizes
        )
        lines = [head + " |", "|---|" + "---:|" * len(sizes)]
        for scaling, by_size in one["losses"].items():
            values = " | ".join(f"{by_size[size]:.4f}" for size in sizes)
            lines.append(f"| {_LABELS[scaling]} | {values} |")
        steps = " | ".join(str(result["epochs"] * -(-one["examples"] // int(s))) for s in sizes)
        lines.append(f"| steps | {steps} |")
        parts.append("\n".join(lines))
    parts.append("![Log loss by batch size](img/large_batches.png)")
    parts.append(tables.machine(result["machine"]))
    return "\n\n".join(parts)


_LABELS = {
    "none": "unscaled rate",
    "sqrt": "× √k, warmed up",
    "linear": "× k, warmed up",
}


def _short(source: str) -> str:
    kind, _, path = source.partition(":")
    return f"{kind}:{Path(path).name}" if path else kind


def main(
    sources: Annotated[
        list[str], typer.Argument(help="Data sources, as of twml-ops train --data.")
    ],
    epochs: int = 4,
    seed: int = 0,
    docs: Annotated[Path, typer.Option(help="Folder of large_batches.md.")] = DOCS,
) -> None:
    """Trains, and writes the table and the plot into the guide."""
    found = {source: losses(source, epochs, seed) for source in sources}
    names = " ".join(_short(source) for source in sources)
    command = f"python -m benchmarks.large_batches {names}"
    about = machine.describe(command)
    write({"epochs": epochs, "machine": about, "sources": found}, docs)


def write(result: dict[str, Any], docs: Path) -> None:
    """Writes the raw results, the plot, and the section of the guide."""
    tables.write_results(tables.results_file(docs, "large_batches.json"), result)
    draw(result, docs / "img" / "large_batches.png")
    section = markdown(result)
    tables.insert(
        docs / "large_batches.md", "large_batches", section, "benchmarks/large_batches.py"
    )


if __name__ == "__main__":
    typer.run(main)
