"""What training and evaluation print: a few lines and a table of metrics."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from twml_ops.cli.render.metrics_table import Metrics, metric_table
from twml_ops.cli.render.terminal import print_warning
from twml_ops.cli.results.epoch_choice import EpochChoice
from twml_ops.cli.results.history import History, SpeedComparison
from twml_ops.cli.results.member import Member
from twml_ops.cli.results.run_result import RunResult
from twml_ops.data import Schema, Source


def print_data(console: Console, train: Source, held_out: Source, sizes: tuple[int, int]) -> None:
    """Prints the sources, their sizes and the number of features."""
    console.print(
        f"[bold]data [/]  {escape(train.name)}: {sizes[0]:,} examples, "
        f"evaluated on {escape(held_out.name)}: {sizes[1]:,}",
        soft_wrap=True,
    )
    s = train.schema
    groups = {"continuous": len(s.continuous), "categorical": len(s.categorical)}
    parts = [f"{n} {name} features" for name, n in groups.items() if n]
    parts += [f"sparse ids below {s.sparse_dim:,}"] if s.sparse_dim else []
    labels = f"; labels: {', '.join(s.labels)}" if len(s.labels) > 1 else ""
    console.print(
        f"        {', '.join(parts)}{escape(labels)}; positive: {escape(s.label)}", soft_wrap=True
    )


def print_split_in_time(console: Console, schema: Schema) -> None:
    """Prints that the evaluation data are the latest of the data."""
    console.print(
        f"        evaluated on the latest examples, by {escape(str(schema.time))}, trained on "
        "earlier ones; --eval gives other data",
        soft_wrap=True,
    )


def print_model(
    console: Console, name: str, weights: int, optimizer: str, trees: Sequence[tuple[int, int]]
) -> None:
    """Prints the name of the model, its number of weights, the optimizer and boosted trees.

    Args:
        console: terminal for the output.
        name: the name of the model.
        weights: their number.
        optimizer: name of the optimizer.
        trees: for each layer of boosted trees the number of ensembles and the trees of the largest.
    """
    console.print(f"[bold]model[/]  {name}: {weights:,} weights, trained by {optimizer}")
    for ensembles, largest in trees:
        console.print(f"        and boosted trees: {ensembles} ensembles of up to {largest} trees")


def print_widths(console: Console, units: Sequence[int]) -> None:
    """Prints how many fields have vectors of which width."""
    counts = sorted(collections.Counter(units).items())
    text = ", ".join(f"{count} of {width}" for width, count in counts)
    console.print(f"        widths of the vectors of {len(units)} fields: {text}")


def print_validation(
    console: Console, fit: Source, validation: Source, sizes: tuple[int, int]
) -> None:
    """Prints the two parts of the training data between which the number of epochs is chosen."""
    console.print(
        f"[bold]stop [/]  by the loss on {escape(validation.name)}: {sizes[1]:,} examples, "
        f"training on {escape(fit.name)}: {sizes[0]:,}",
        soft_wrap=True,
    )


def print_crosses(console: Console, crosses: Sequence[str]) -> None:
    """Prints the crosses of categories that were chosen, best first."""
    console.print(
        f"[bold]cross[/]  {len(crosses)} crosses of categories: {escape(', '.join(crosses))}"
    )


def print_choice(console: Console, choice: EpochChoice) -> None:
    """Prints the chosen number of epochs and what follows."""
    then = "training again on all training data" if choice.refit else "keeping these weights"
    console.print(
        f"[bold]best [/]  epoch {choice.epochs}: validation loss {choice.log_loss:.4f}; {then}"
    )


def print_member(console: Console, members: Sequence[Member], count: int) -> None:
    """Prints that the last one of `members` is trained, out of `count`."""
    last = members[-1]
    console.print(
        f"member [bold]{len(members)}[/]/{count}   seed {last.seed}, trained in "
        f"{last.seconds:,.1f} s"
    )


def print_checkpoint(console: Console, step: int, steps: int, metrics: Mapping[str, float]) -> None:
    """Prints the metrics of the checkpoint of `step`, out of `steps`."""
    console.print(
        f"step {step:,}/{steps:,}   eval loss {metrics['log_loss']:.4f}  AUC {metrics['auc']:.4f}"
    )


def print_parsed(
    console: Console, history: History, worker: tuple[int, int], *, is_whole: bool, is_chief: bool
) -> None:
    """Prints how much of the training data a worker of a cluster has parsed.

    Args:
        console: where to print.
        history: the record of the training.
        worker: its number, and the number of workers.
        is_whole: whether the data could not be divided among the workers.
        is_chief: whether the worker is the chief.
    """
    parsed, whole = history.parsed_bytes, history.data_bytes
    notes = [f"{parsed / whole:.1%}"] if whole else []
    if is_whole and worker[1] > 1:
        notes.append("the data have too few units to be divided")
    elif is_chief:
        notes.append("the chief also adapts the model to all of them and reads the evaluation data")
    console.print(
        f"worker {worker[0]} of {worker[1]} parsed {parsed / 1e6:,.1f} MB; the training data have "
        f"{whole / 1e6:,.1f} MB ({'; '.join(notes)})",
        soft_wrap=True,
    )


def print_speeds(console: Console, speeds: SpeedComparison) -> None:
    """Prints that a cluster is slower than one process, if it is.

    Args:
        console: where to print.
        speeds: what was measured.
    """
    text = speeds.warning()
    if text is not None:
        print_warning(console, text)


def print_metrics(
    console: Console,
    metrics: Metrics,
    by_label: Mapping[str, Metrics],
    before: Mapping[str, Metrics] | None = None,
) -> None:
    """Prints a table with one metric per row.

    Args:
        console: where to print.
        metrics: value by name, as in metrics.json.
        by_label: metrics of each label; several labels have a column each.
        before: the same before a calibration, for more columns; None: there was none.
    """
    found = metric_table(metrics, by_label, before)
    with_headings = len(found.headings) > 1
    table = Table(box=box.SIMPLE_HEAD, show_header=with_headings, pad_edge=False)
    table.add_column(style="bold")
    for heading in found.headings:
        style = "" if heading.endswith("before") else "cyan"
        table.add_column(escape(heading), justify="right", style=style)
    table.add_column(style="dim")
    for row in found.rows:
        table.add_row(row.name, *row.values, row.note)
    console.print(table)


def print_evaluation(
    console: Console,
    run: Path,
    source: Source,
    metrics: Metrics,
    by_label: Mapping[str, Metrics],
) -> None:
    """Prints the metrics of the run in the folder `run` on a data set."""
    console.print(f"[bold]{escape(str(run))}[/] on {escape(source.name)}", soft_wrap=True)
    print_metrics(console, metrics, by_label)


def print_result(console: Console, result: RunResult, files: str, out: Path) -> None:
    """Prints the metrics of a run and where its files are.

    Args:
        console: where to print.
        result: the run.
        files: the files, for example "the report and the metrics".
        out: their folder.
    """
    print_metrics(console, result.metrics, result.label_metrics, result.metrics_before())
    console.print(f"[dim]{files} are in[/] [bold]{escape(str(out))}[/]")
