"""The final training of a run: of its model, or of each member of its ensemble."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from twml_ops import models
from twml_ops._phases import phase
from twml_ops.data import Source
from twml_ops.training.checkpoints import RunCheckpoints
from twml_ops.training.config import RunConfig
from twml_ops.training.errors import UserError
from twml_ops.training.labels import corrected
from twml_ops.training.model import model_maker, report_model, without_optimizer
from twml_ops.training.reporter import Reporter
from twml_ops.training.results import FittedModel, History, Member
from twml_ops.training.runners import MakeRunner, Monitored, below
from twml_ops.training.selection import Choices


def final_fit(
    make_runner: MakeRunner,
    choices: Choices,
    data: Source,
    held_out: Source,
    logs: Path | None,
    reporter: Reporter,
    checkpoints: RunCheckpoints | None = None,
) -> FitMember:
    """A function that trains a member of an ensemble for the chosen or the given number of epochs.

    All members are trained on the same data: all training data or, if the first one keeps the
    weights of early stopping, the part without the validation data.

    Args:
        make_runner: says where to train.
        choices: what was chosen.
        data: training data.
        held_out: evaluation data, on which the first member is monitored if nothing was chosen.
        logs: folder of the TensorBoard logs of the run; None: there are none.
        reporter: is told what happens.
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
        folder = logs if first else below(logs, f"member_{number}")
        here = make_runner(config, folder, reporter, checkpoints, member=number, final=True)
        with phase("model"):
            model = here.build(lambda: make_model(source))
        if chosen is not None:
            with phase("refit" if chosen.refit else "training"):
                return here.fit(model, source, None, epochs=chosen.epochs)
        monitored = None
        if first:
            report_model(reporter, model, config.optimizer)
            # The evaluation data is only monitored: nothing is chosen by it.
            monitored = Monitored(held_out, "evaluation")
        with phase("training"):
            return here.fit(model, source, monitored, epochs=config.fixed_epochs)

    return fit


FitMember = Callable[[int, RunConfig], FittedModel]
"""Trains a member, of which the number from 0 and the configuration are given."""


class FittedMembers(NamedTuple):
    """The model of a run, which is an ensemble or a single model.

    Attributes:
        model: the model, with the correction for sampled negatives.
        history: the record of the training of the first member.
        members: one for each model that was trained.
    """

    model: tf.keras.Model
    history: History
    members: list[Member]


def check_ensemble(config: RunConfig) -> None:
    """Checks the size of the ensemble.

    Raises:
        UserError: it is not positive.
    """
    if config.ensemble < 1:
        raise UserError(f"--ensemble must be at least 1, got {config.ensemble}")


def member_seeds(seed: int, count: int) -> list[int]:
    """The seeds of the members of an ensemble.

    That of the first member is the seed of the run. The others are hashes of it and of the number
    of the member, so that ensembles of runs with successive seeds have no members in common.
    """
    others = [np.random.SeedSequence([seed, i]).generate_state(1)[0] for i in range(1, count)]
    return [seed, *map(int, others)]


def fit_members(
    config: RunConfig,
    fit: FitMember,
    reporter: Reporter,
    checkpoints: RunCheckpoints | None = None,
) -> FittedMembers:
    """Trains the members of an ensemble one after another, and combines them.

    Only the weights of a trained member are kept: the slots of its optimizer are released before
    the next one is built.

    Args:
        config: configuration of the run.
        fit: trains a member.
        reporter: is told what happens.
        checkpoints: the checkpoints of the run, which keep the members that are trained; None: none
            are written.

    Returns:
        The ensemble, or the only model itself if `config.ensemble` is 1.
    """
    if config.ensemble > 1 and checkpoints is not None:
        fit = _kept(fit, checkpoints)
    fitted = fit(0, config)
    history, model = fitted.history, corrected(fitted.model, config)
    members = [Member(config.seed, history.examples, history.seconds)]
    if config.ensemble == 1:
        return FittedMembers(model, history, members)
    reporter.member(members, config.ensemble)
    trained = [without_optimizer(model)]
    for i, seed in enumerate(member_seeds(config.seed, config.ensemble)[1:], 1):
        del fitted, model
        fitted = fit(i, dataclasses.replace(config, seed=seed))
        model = corrected(fitted.model, config)
        trained.append(without_optimizer(model))
        members.append(Member(seed, fitted.history.examples, fitted.history.seconds))
        reporter.member(members, config.ensemble)
    return FittedMembers(models.ensemble(trained), history, members)


def _kept(fit: FitMember, checkpoints: RunCheckpoints) -> FitMember:
    """Trains a member, unless an earlier process of the run has done that."""

    def fit_or_load(number: int, config: RunConfig) -> FittedModel:
        fitted = checkpoints.load_member(number)
        if fitted is None:
            fitted = fit(number, config)
            checkpoints.keep_member(number, fitted)
        return fitted

    return fit_or_load
