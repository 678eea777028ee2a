"""What training and scoring show: a live bar on a terminal, a line per epoch elsewhere."""

from __future__ import annotations

import math
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

from twml_ops.cli.errors import UserError
from twml_ops.cli.render.plots import Point

POINTS_PER_EPOCH = 40


class _Facts(ProgressColumn):
    """Loss and AUC so far, and how fast it goes."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["facts"], style="cyan")


class Bar:
    """A progress bar over examples, or nothing where nobody watches.

    Args:
        console: where to; a bar only on a terminal.
        title: left of the bar.
        total: examples to do, if known.
    """

    def __init__(self, console: Console, title: str, total: int | None) -> None:
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=28, complete_style="blue", finished_style="green"),
            MofNCompleteColumn(),
            _Facts(),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task = self._progress.add_task(escape(title), total=total, facts="")
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

    def add(self, examples: int, facts: str = "") -> None:
        """Advances by `examples`."""
        self._done += examples
        speed = self._done / max(time.perf_counter() - self._start, 1e-9)
        facts = f"{facts}  {speed:,.0f} ex/s".strip()
        self._progress.update(self._task, advance=examples, facts=facts)


class Report(tf.keras.callbacks.Callback):
    """Shows training, keeps its learning curve, and stops it when the loss is no number.

    Args:
        console: where to.
        examples: in an epoch.
        batch_size: examples in a batch.

    Attributes:
        train: the learning curve on the training data, each point a mean since the last.
        held_out: the log loss on the evaluation data after each epoch.
        examples: trained on so far.
        seconds: of training so far, without the evaluations.
    """

    def __init__(self, console: Console, examples: int, batch_size: int) -> None:
        super().__init__()
        self.train: list[Point] = []
        self.held_out: list[Point] = []
        self.examples, self.seconds = 0, 0.0
        self._console, self._epoch_examples, self._batch_size = console, examples, batch_size
        self._every = max(batch_size, examples // POINTS_PER_EPOCH)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts a bar."""
        self._epoch = epoch
        self._seen, self._curve_seen, self._curve_sum = 0, 0, 0.0
        title = f"epoch {epoch + 1}/{self.params['epochs']}"
        self._bar: Bar | None = Bar(self._console, title, self._epoch_examples).__enter__()
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Advances the bar; Keras' logs are means since the start of the epoch.

        Raises:
            UserError: the loss is NaN or infinite.
        """
        seen = min((batch + 1) * self._batch_size, self._epoch_examples)
        loss, auc = float(logs["loss"]), float(logs["auc"])
        if not math.isfinite(loss):
            self._end_of_training()
            raise UserError(
                f"the loss became {loss} within the first {seen:,} examples of epoch "
                f"{self._epoch + 1}: try a lower --learning-rate"
            )
        assert self._bar is not None
        self._bar.add(seen - self._seen, f"loss {loss:.4f}  AUC {auc:.4f}")
        self.examples += seen - self._seen
        self._seen = seen
        if seen - self._curve_seen >= self._every:
            mean = (loss * seen - self._curve_sum) / (seen - self._curve_seen)
            self.train.append(Point(self.examples, mean))
            self._curve_seen, self._curve_sum = seen, loss * seen

    def on_test_begin(self, logs: Any = None) -> None:
        """An epoch's evaluation is not training."""
        self._end_of_training()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """One lasting line for the epoch."""
        self._end_of_training()
        self.held_out.append(Point(self.examples, float(logs["val_loss"])))
        self._console.print(
            f"epoch [bold]{epoch + 1}[/]/{self.params['epochs']}"
            f"   train loss {logs['loss']:.4f}  AUC {logs['auc']:.4f}"
            f"   eval loss {logs['val_loss']:.4f}  AUC {logs['val_auc']:.4f}"
            f"   [dim]{self._seen / self._epoch_seconds:,.0f} examples/s[/]"
        )

    def _end_of_training(self) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
            self._bar = None
            self._epoch_seconds = time.perf_counter() - self._start
            self.seconds += self._epoch_seconds
