"""Progress of training and scoring: a live bar on a terminal, one line per epoch."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

import tensorflow as tf
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
from rich.text import Text

from twml_ops.cli.results.history import History


class _StatusColumn(ProgressColumn):
    """The current metrics and the throughput."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["status"], style="cyan")


class Bar:
    """A progress bar over examples. It is only shown on a terminal.

    Args:
        console: console of the bar.
        title: label to the left of the bar.
        total: number of examples, if known.
    """

    def __init__(self, console: Console, title: str, total: int | None) -> None:
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
        self._start = time.perf_counter()
        self._done = 0

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


class ProgressCallback(tf.keras.callbacks.Callback):
    """Shows the progress of `fit`: a bar during each epoch and a line after it.

    It is a context manager, which removes the bar when `fit` fails.

    Args:
        console: console of the bar and the lines.
        history: record of the training. The callback that writes it must run before this one.
        examples: number of examples in an epoch.
    """

    def __init__(self, console: Console, history: History, examples: int) -> None:
        super().__init__()
        self._console, self._history, self._examples = console, history, examples
        self._bar: Bar | None = None

    def __enter__(self) -> ProgressCallback:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_bar()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts the bar of the epoch."""
        self._shown = self._history.examples
        title = f"epoch {epoch + 1}/{self.params['epochs']}"
        self._bar = Bar(self._console, title, self._examples).__enter__()

    def skip(self, examples: int) -> None:
        """Advances the bar by examples of the epoch that were seen before the run was continued."""
        assert self._bar is not None
        self._bar.add(examples)
        self._shown = self._history.examples

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Advances the bar."""
        assert self._bar is not None
        status = f"loss {float(logs['loss']):.4f}  AUC {float(logs['auc']):.4f}"
        self._bar.add(self._history.examples - self._shown, status)
        self._shown = self._history.examples

    def on_test_begin(self, logs: Any = None) -> None:
        """Removes the bar: the evaluation after an epoch is not training."""
        self._close_bar()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Prints the line of the epoch."""
        self._close_bar()
        record = self._history.epochs[-1]
        metrics, monitored = record.metrics, ""
        if "val_loss" in metrics:
            name = self._history.monitored
            monitored = f"   {name} loss {metrics['val_loss']:.4f}  AUC {metrics['val_auc']:.4f}"
        self._console.print(
            f"epoch [bold]{epoch + 1}[/]/{self.params['epochs']}"
            f"   train loss {metrics['loss']:.4f}  AUC {metrics['auc']:.4f}"
            f"{monitored}"
            f"   [dim]{record.examples / record.seconds:,.0f} examples/s[/]"
        )

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
            self._bar = None
