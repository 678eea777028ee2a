"""The final training of a run: of its model, or of each member of its ensemble."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from twml_ops.cli.runs.checkpoints import RunCheckpoints
from twml_ops.cli.runs.choices import Choices
from twml_ops.cli.runs.config import RunConfig
from twml_ops.cli.runs.ensemble import FitMember
from twml_ops.cli.runs.local_runner import LocalRunner
from twml_ops.cli.runs.make_model import model_maker
from twml_ops.cli.runs.print_model import print_model
from twml_ops.cli.runs.runner import FittedModel, Monitored, Runner
from twml_ops.data import Source


def final_fit(
    runner: Runner,
    choices: Choices,
    data: Source,
    held_out: Source,
    logs: Path,
    console: Console,
    checkpoints: RunCheckpoints | None = None,
) -> FitMember:
    """A function that trains a member of an ensemble for the chosen or the given number of epochs.

    All members are trained on the same data: all training data or, if the first one keeps the
    weights of early stopping, the part without the validation data.

    Args:
        runner: where the first member is trained; the others are trained in this process.
        choices: what was chosen.
        data: training data.
        held_out: evaluation data, on which the first member is monitored if nothing was chosen.
        logs: folder of the TensorBoard logs of the run.
        console: terminal for the output.
        checkpoints: the checkpoints of the run; None: none are written.

    Returns:
        The function. It raises `RunInterrupted` if a signal arrived after the last step of the
        model before.
    """
    chosen, parts = choices.epochs, choices.parts
    source = data if chosen is None or chosen.refit or parts is None else parts.fit

    def fit(number: int, config: RunConfig) -> FittedModel:
        first = number == 0
        if first and choices.kept is not None:
            return choices.kept
        if checkpoints is not None:
            checkpoints.stop_if_interrupted()
        make_model = model_maker(config)
        here = runner
        if not first:
            folder = logs / f"member_{number}"
            here = LocalRunner(config, folder, console, checkpoints, number)
        model = here.build(lambda: make_model(source))
        if chosen is not None:
            return here.fit(model, source, None, epochs=chosen.epochs)
        monitored = None
        if first:
            print_model(console, model, config.optimizer)
            # The evaluation data is only monitored: nothing is chosen by it.
            monitored = Monitored(held_out, "evaluation")
        return here.fit(model, source, monitored, epochs=config.fixed_epochs)

    return fit
