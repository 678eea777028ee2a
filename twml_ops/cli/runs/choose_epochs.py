"""Chooses the number of passes over the training data by early stopping."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
from rich.console import Console

from twml_ops.cli.errors import UserError
from twml_ops.cli.render import run_summary
from twml_ops.cli.results.epoch_choice import EpochChoice
from twml_ops.cli.runs.callbacks import EarlyStopping
from twml_ops.cli.runs.class_balance import training_examples
from twml_ops.cli.runs.config import RunConfig
from twml_ops.cli.runs.print_model import print_model
from twml_ops.cli.runs.runner import FittedModel, MakeModel, Monitored, Runner
from twml_ops.data import Source, TrainingParts, split_for_validation

MIN_EXAMPLES = 100  # of validation data; the losses of fewer differ by chance


def validation_parts(config: RunConfig, train: Source) -> TrainingParts | None:
    """Divides the training data as the configuration says.

    Args:
        config: configuration of the run.
        train: training data.

    Returns:
        The parts, both without the negatives that are not used for training; None if the number of
        epochs is given, if there is to be no validation, in a cluster, or if the validation data
        would be fewer than `MIN_EXAMPLES` and the user did not ask for them.

    Raises:
        UserError: options contradict each other, or the data cannot be divided as they say.
        DataError: the data cannot be read.
    """
    if config.epochs is not None:
        if config.validation not in ("auto", "none"):
            raise UserError(
                "--epochs fixes the number of epochs and --validation chooses it: use one of them "
                "(--max-epochs limits the choice)"
            )
        return None
    if config.cluster is not None and config.validation not in ("auto", "none"):
        raise UserError("--validation: a cluster trains for a fixed number of epochs, --epochs")
    if config.validation == "none" or config.cluster is not None:
        return None
    share = config.validation_share
    if config.validation == "auto" and train.num_examples() * share < MIN_EXAMPLES:
        return None
    try:
        # The cast is checked by the function.
        parts = split_for_validation(train, config.validation, share)  # type: ignore[arg-type]
    except ValueError as e:
        raise UserError(f"--validation {config.validation}: {e}") from e
    return TrainingParts(*(training_examples(config, part) for part in parts))


def choose_epochs(
    config: RunConfig,
    runner: Runner,
    make_model: MakeModel,
    parts: TrainingParts,
    console: Console,
    callbacks: Sequence[tf.keras.callbacks.Callback] = (),
) -> tuple[EpochChoice, FittedModel | None]:
    """Trains on one part until the loss on the other one no longer decreases.

    Args:
        config: configuration of the run.
        runner: where to train.
        make_model: returns an untrained model that is adapted to a source.
        parts: training data and validation data.
        console: terminal for the output.
        callbacks: Keras callbacks beside that of early stopping.

    Returns:
        (the choice, the model with the weights of the best epoch or, if there is to be a refit,
        None).

    Raises:
        UserError: the loss is NaN or infinite.
    """
    fit, validation = parts
    sizes = fit.num_examples(), validation.num_examples()
    model = runner.build(lambda: make_model(fit))
    print_model(console, model, config.optimizer)
    run_summary.print_validation(console, fit, validation, sizes)
    stopping = EarlyStopping(config.patience, restore=not config.refit)
    fitted = runner.fit(
        model,
        fit,
        Monitored(validation, "validation"),
        epochs=config.max_epochs,
        callbacks=[stopping, *callbacks],
    )
    choice = EpochChoice(
        fit.name,
        validation.name,
        *sizes,
        stopping.best_epoch,
        stopping.best_loss,
        config.refit,
        fitted.history,
    )
    run_summary.print_choice(console, choice)
    return choice, None if config.refit else fitted
