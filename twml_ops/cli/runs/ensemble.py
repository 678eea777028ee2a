"""The members of an ensemble: runs that differ in their seed, trained one after another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from rich.console import Console

from twml_ops import models
from twml_ops.cli.errors import UserError
from twml_ops.cli.render import run_summary
from twml_ops.cli.results.history import History
from twml_ops.cli.results.member import Member
from twml_ops.cli.runs.checkpoints import RunCheckpoints
from twml_ops.cli.runs.class_balance import corrected
from twml_ops.cli.runs.config import RunConfig
from twml_ops.cli.runs.runner import FittedModel

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


def check(config: RunConfig) -> None:
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
    console: Console,
    checkpoints: RunCheckpoints | None = None,
) -> FittedMembers:
    """Trains the members of an ensemble one after another, and combines them.

    Only the weights of a trained member are kept: the slots of its optimizer are released before
    the next one is built.

    Args:
        config: configuration of the run.
        fit: trains a member.
        console: terminal for the output.
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
    run_summary.print_member(console, members, config.ensemble)
    trained = [without_optimizer(model)]
    for i, seed in enumerate(member_seeds(config.seed, config.ensemble)[1:], 1):
        del fitted, model
        fitted = fit(i, dataclasses.replace(config, seed=seed))
        model = corrected(fitted.model, config)
        trained.append(without_optimizer(model))
        members.append(Member(seed, fitted.history.examples, fitted.history.seconds))
        run_summary.print_member(console, members, config.ensemble)
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


def without_optimizer(model: tf.keras.Model) -> tf.keras.Model:
    """A model with the layers of a trained one, but not its optimizer with its slots."""
    return tf.keras.Model(model.input, model.output, name=model.name)
