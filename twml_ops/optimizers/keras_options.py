"""Arguments of optimizers that only one of Keras 2 and Keras 3 has."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from twml_ops._keras import KERAS_3, VERSION, optimizer_takes

# Keras 2 writes them into configs, and needs the second one to load them.
_OF_KERAS_2 = ("jit_compile", "is_legacy_optimizer")


# Names that other versions of Keras and other libraries use.
_OTHER_NAMES = {"lr": "learning_rate", "eps": "epsilon", "betas": "beta_1", "decay": "weight_decay"}


def check_other_options(optimizer: type, options: dict[str, Any]) -> None:
    """Checks keywords that no constructor of an optimizer names.

    Args:
        optimizer: the class whose constructor was called.
        options: the keywords; those that only configs of Keras 2 have are accepted.

    Raises:
        TypeError: there is no such option; the message names the one that was probably meant.
        ValueError: an option of Keras 2 has another value than in its configs.
    """
    for option, value in options.items():
        if option not in _OF_KERAS_2:
            raise TypeError(
                f"{optimizer.__name__} has no argument {option!r}{did_you_mean(optimizer, option)}"
            )
        if value:
            raise ValueError(f"{option} must be False, got {value!r}")


def did_you_mean(optimizer: type, option: str) -> str:
    """The keyword that was probably meant, as the end of a message; empty if none is similar."""
    known = {
        p.name: None
        for c in optimizer.__mro__
        if c.__module__.startswith("twml_ops.")
        for p in inspect.signature(c.__init__).parameters.values()  # type: ignore[misc]
        if p.name != "self" and p.kind is not p.VAR_KEYWORD
    }
    other = _OTHER_NAMES.get(option)
    found = [other] if other in known else difflib.get_close_matches(option, known, n=1)
    return f"; did you mean {found[0]}?" if found else ""


def initialize_keras(
    optimizer: Any,
    initialize: Callable[..., None],
    learning_rate: Any,
    *,
    loss_scale_factor: float | None,
    gradient_accumulation_steps: int | None,
    **options: Any,
) -> None:
    """Calls the constructor of Keras' optimizer, as Keras 2 or 3 takes it.

    Args:
        optimizer: the optimizer.
        initialize: the constructor of its base class.
        learning_rate: the learning rate of the optimizer.
        loss_scale_factor: option of Keras 3.
        gradient_accumulation_steps: option of Keras 3.
        **options: the options that both have.

    Raises:
        ValueError: an option is given that the running Keras does not have.
    """
    options |= _options_of_keras_3(
        loss_scale_factor=loss_scale_factor, gradient_accumulation_steps=gradient_accumulation_steps
    )
    if KERAS_3:
        initialize(learning_rate=learning_rate, **options)
    else:
        initialize(jit_compile=False, **options)  # XLA does not know the kernels.
        optimizer._learning_rate = optimizer._build_learning_rate(learning_rate)


def _options_of_keras_3(**options: Any) -> dict[str, Any]:
    """The options that the running Keras has.

    Raises:
        ValueError: one that it does not have is given.
    """
    for option, value in options.items():
        if value is not None and not optimizer_takes(option):
            raise ValueError(
                f"{option} is an option of Keras 3 that the running Keras {VERSION} does not have, "
                f"expected None, got {value!r}"
            )
    return {k: v for k, v in options.items() if optimizer_takes(k)}
