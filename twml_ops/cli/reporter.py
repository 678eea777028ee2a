"""What training and evaluation print: lines, tables, and a bar on a terminal."""

from __future__ import annotations

import collections
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from twml_ops.cli.console import make_error_console, print_warning
from twml_ops.data import Schema, Source
from twml_ops.report.columns import columns_table
from twml_ops.report.result_tables import (
    Metrics,
    describe_trial,
    leak_warnings,
    loss_text,
    metric_table,
)
from twml_ops.training.reporter import Reporter
from twml_ops.training.results import (
    Epoch,
    EpochChoice,
    History,
    Member,
    ModelChoice,
    RunResult,
    SpeedComparison,
    Trial,
)


class _StatusColumn(ProgressColumn):
    """The current metrics and the throughput."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["status"], style="cyan")


LINE_SECONDS = 10.0  # between two lines of progress that no terminal shows


class Bar:
    """A progress bar over examples on a terminal; elsewhere a line at a tenth of them.

    Args:
        console: console of the bar.
        title: label to the left of the bar.
        total: number of examples, if known; otherwise a line comes at any number of them.
        line_seconds: least time between two lines, so that short passes print none.
    """

    def __init__(
        self,
        console: Console,
        title: str,
        total: int | None,
        line_seconds: float | None = None,
    ) -> None:
        self._console, self._title, self._total = console, title, total
        self._line_seconds = LINE_SECONDS if line_seconds is None else line_seconds
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=28, complete_style="blue", finished_style="green"),
            MofNCompleteColumn(),
            _StatusColumn(),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task = self._progress.add_task(escape(title), total=total, status="")
        self._start = self._last_line = time.perf_counter()
        self._done = self._printed = 0

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def add(self, examples: int, status: str = "") -> None:
        """Advances the bar by `examples`, and shows `status` and the throughput beside it."""
        self._done += examples
        speed = self._done / max(time.perf_counter() - self._start, 1e-9)
        status = f"{status}  {speed:,.0f} ex/s".strip()
        self._progress.update(self._task, advance=examples, status=status)
        if not self._console.is_terminal:
            self._print_line(status)

    def _print_line(self, status: str) -> None:
        """Prints the progress if a further tenth is done and the last line is long ago."""
        tenth = 10 * self._done // self._total if self._total else self._done
        now = time.perf_counter()
        if tenth <= self._printed or now - self._last_line < self._line_seconds:
            return
        self._printed, self._last_line = tenth, now
        if self._total and tenth >= 10:  # what comes next says so
            return
        share = f"{10 * tenth} %" if self._total else f"{self._done:,} examples"
        self._console.print(f"{escape(self._title)}: {share}   {escape(status)}", soft_wrap=True)


class ConsoleReporter(Reporter):
    """Prints what a training does.

    Args:
        console: where to print.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    def phase(self, text: str) -> AbstractContextManager[object]:
        """Shows the text until the end of the block, on a terminal."""
        return self._console.status(escape(text))

    def phase_ended(self, name: str, seconds: float) -> None:
        """Prints the name of a phase and its seconds."""
        self._console.print(f"[dim]time   {escape(name)} {seconds:,.1f} s[/]")

    def bar(self, title: str, total: int | None) -> Bar:
        """Shows a bar on a terminal; prints a line now and then elsewhere."""
        return Bar(self._console, title, total)

    def warning(self, text: str) -> None:
        """Prints a line that begins with "warning"."""
        print_warning(self._console, text)

    def failure(self, text: str) -> None:
        """Prints a line on the standard error."""
        make_error_console().print(f"[yellow]warning[/]  {escape(text)}", soft_wrap=True)

    def resumed(self, step: int, epoch: int, folder: object) -> None:
        """Prints where the training continues."""
        self._console.print(f"continuing from step {step:,} (epoch {epoch}) of {folder}")

    def epoch(self, number: int, count: int, record: Epoch, monitored: str) -> None:
        """Prints the line of an epoch."""
        metrics, of_monitored = record.metrics, ""
        loss = f"{metrics['loss']:.4f}" if "loss" in metrics else "not measured"
        auc = f"  AUC {metrics['auc']:.4f}" if "auc" in metrics else ""  # a cluster has none
        if "val_loss" in metrics:
            of_monitored = (
                f"   {monitored} loss {metrics['val_loss']:.4f}  AUC {metrics['val_auc']:.4f}"
            )
        self._console.print(
            f"epoch [bold]{number}[/]/{count}"
            f"   train loss {loss}{auc}"
            f"{of_monitored}"
            f"   [dim]{record.examples / record.seconds:,.0f} examples/s[/]"
        )

    def exchanges(self, counts: Mapping[str, int]) -> None:
        """Prints what peers have exchanged."""
        self._console.print(", ".join(f"{value} {name}" for name, value in counts.items()))

    def data(self, train: Source, held_out: Source, sizes: tuple[int, int]) -> None:
        """Prints the sources, their sizes and the number of features."""
        self._console.print(
            f"[bold]data [/]  {escape(train.name)}: {sizes[0]:,} examples, "
            f"evaluated on {escape(held_out.name)}: {sizes[1]:,}",
            soft_wrap=True,
        )
        s = train.schema
        groups = {"continuous": len(s.continuous), "categorical": len(s.categorical)}
        parts = [f"{n} {name} features" for name, n in groups.items() if n]
        parts += [f"sparse ids below {s.sparse_dim:,}"] if s.sparse_dim else []
        labels = f"; labels: {', '.join(s.labels)}" if len(s.labels) > 1 else ""
        self._console.print(
            f"        {', '.join(parts)}{escape(labels)}; positive: {escape(s.label)}",
            soft_wrap=True,
        )

    def split_in_time(self, schema: Schema) -> None:
        """Prints that the evaluation data are the latest of the data."""
        self._console.print(
            f"        evaluated on the latest examples, by {escape(str(schema.time))}, trained on "
            "earlier ones; --eval gives other data",
            soft_wrap=True,
        )

    def model(
        self, name: str, weights: int, optimizer: str, trees: Sequence[tuple[int, int]]
    ) -> None:
        """Prints the name of the model, its number of weights, the optimizer and boosted trees."""
        self._console.print(f"[bold]model[/]  {name}: {weights:,} weights, trained by {optimizer}")
        for ensembles, largest in trees:
            several = "ensembles" if ensembles > 1 else "ensemble"
            self._console.print(
                f"        and boosted trees: {ensembles} {several} of up to {largest} trees"
            )

    def widths(self, units: Sequence[int]) -> None:
        """Prints how many fields have vectors of which width."""
        counts = sorted(collections.Counter(units).items())
        text = ", ".join(f"{count} of {width}" for width, count in counts)
        self._console.print(f"        widths of the vectors of {len(units)} fields: {text}")

    def validation(self, fit: Source, validation: Source, sizes: tuple[int, int]) -> None:
        """Prints the two parts of the training data."""
        self._console.print(
            f"[bold]stop [/]  by the loss on {escape(validation.name)}: {sizes[1]:,} examples, "
            f"training on {escape(fit.name)}: {sizes[0]:,}",
            soft_wrap=True,
        )

    def crosses(self, crosses: Sequence[str]) -> None:
        """Prints the crosses of categories that were chosen, best first."""
        self._console.print(
            f"[bold]cross[/]  {len(crosses)} crosses of categories: {escape(', '.join(crosses))}"
        )

    def epochs_chosen(self, choice: EpochChoice) -> None:
        """Prints the chosen number of epochs and what follows."""
        then = "training again on all training data" if choice.refit else "keeping these weights"
        self._console.print(
            f"[bold]best [/]  epoch {choice.epochs}: validation loss {choice.log_loss:.4f}; {then}"
        )
        if choice.tree_share is not None:
            self._console.print(
                "[bold]trees[/]  the logit of the boosted trees has the weight "
                f"{choice.tree_share:g} instead of 0.5 in the mean"
            )

    def member(self, members: Sequence[Member], count: int) -> None:
        """Prints that the last one of `members` is trained, out of `count`."""
        last = members[-1]
        self._console.print(
            f"member [bold]{len(members)}[/]/{count}   seed {last.seed}, trained in "
            f"{last.seconds:,.1f} s"
        )

    def checkpoint(self, step: int, steps: int, metrics: Mapping[str, float]) -> None:
        """Prints the metrics of the checkpoint of `step`, out of `steps`."""
        self._console.print(
            f"step {step:,}/{steps:,}   eval loss {metrics['log_loss']:.4f}  "
            f"AUC {metrics['auc']:.4f}"
        )

    def parsed(
        self, history: History, worker: tuple[int, int], *, is_whole: bool, is_chief: bool
    ) -> None:
        """Prints how much of the training data a worker of a cluster has parsed."""
        parsed, whole = history.parsed_bytes, history.data_bytes
        notes = [f"{parsed / whole:.1%}"] if whole else []
        if is_whole and worker[1] > 1:
            notes.append("the data have too few units to be divided")
        elif is_chief:
            notes.append(
                "the chief also adapts the model to all of them and reads the evaluation data"
            )
        self._console.print(
            f"worker {worker[0]} of {worker[1]} parsed {parsed / 1e6:,.1f} MB; the training data "
            f"have {whole / 1e6:,.1f} MB ({'; '.join(notes)})",
            soft_wrap=True,
        )

    def speeds(self, speeds: SpeedComparison) -> None:
        """Prints that a cluster is slower than one process, if it is."""
        text = speeds.warning()
        if text is not None:
            self.warning(text)

    def columns(self, source: Source) -> None:
        """Prints what the columns of data without a schema are taken for, and how to change it."""
        if source.findings:
            self._console.print(columns_table(source.findings, source.schema))
            options = (
                "--label, --positive-label, --time, --time-features, --weight, --group, "
                "--categorical, --numeric and --drop"
            )
            self._console.print(
                "[dim]distinct and missing are counted in a sample; [/][yellow]?[/][dim] marks an "
                "uncertain guess. "
                f"{options}, or a file of `twml-ops schema`, override a guess[/]",
                soft_wrap=True,
            )

    def leaks(self, leaks: Mapping[str, float], data: str) -> None:
        """Prints the warnings, if there are any."""
        for text in leak_warnings(leaks, data):
            self.warning(text)

    def trials(self, name: str, examples: int) -> None:
        """Prints on which data the trials are judged, and the titles of the columns."""
        self._console.print(
            f"[bold]trials[/] judged by the log loss on {escape(name)}: {examples:,} examples",
            soft_wrap=True,
        )
        self._console.print(
            f"[bold]{'':>4}  {'log loss':<9} {'epochs':>6} {'seconds':>8}  model and options[/]"
        )

    def trial(self, number: int, trial: Trial, best: bool) -> None:
        """Prints the row of a trial, marked if it is the best one so far."""
        row = f"{number:>4}  {loss_text(trial):<9} {trial.epochs:>6} {trial.seconds:>8,.1f}"
        note = f" ({trial.note})" if trial.note else ""
        style = "cyan" if best else "dim"
        self._console.print(
            f"[{style}]{row}  {escape(describe_trial(trial) + note)}[/]", soft_wrap=True
        )

    def model_chosen(self, choice: ModelChoice) -> None:
        """Prints the chosen model and how long the search took."""
        self._console.print(
            f"[bold]auto [/]  {escape(describe_trial(choice.trials[choice.best]))}: the best of "
            f"{len(choice.trials)} trials in {choice.seconds:,.1f} s",
            soft_wrap=True,
        )

    def second_model(self, trial: Trial, log_loss: float, chosen: bool) -> None:
        """Prints the second model, its loss, that of the default model, and which one is chosen."""
        name = escape(describe_trial(trial))
        self._console.print(
            f"[bold]second[/] {name}: validation loss {loss_text(trial)}, the first model has "
            f"{log_loss:.5f}; {'chosen' if chosen else 'not chosen'}",
            soft_wrap=True,
        )

    def searched(self, data: str, model: str, values: Mapping[str, object]) -> None:
        """Prints the training data, and the options that are searched with their values."""
        self._console.print(f"[bold]tune [/]  {escape(model)} on {escape(data)}", soft_wrap=True)
        for name, described in values.items():
            self._console.print(f"        {escape(name)}: {escape(str(described))}", soft_wrap=True)


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


def print_total(console: Console, seconds: float) -> None:
    """Prints the wall time of a command, from the start of its process."""
    console.print(f"[dim]time   all together[/] [bold]{seconds:,.1f} s[/]")


def print_tuned(console: Console, out: Path) -> None:
    """Prints where the best configuration is and what it is for."""
    console.print(
        f"[dim]the best options are in[/] [bold]{escape(str(out))}[/][dim]; to train with them: "
        f"twml-ops train --config {escape(str(out))} --out FOLDER[/]",
        soft_wrap=True,
    )
