"""Arguments of optimizers that only one of Keras 2 and Keras 3 has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twml_ops._keras import KERAS_3, VERSION, optimizer_takes

# Keras 2 writes them into configs, and needs the second one to load them.
_OF_KERAS_2 = ("jit_compile", "is_legacy_optimizer")


def check_options_of_keras_2(options: dict[str, Any]) -> None:
    """Checks options that only configs of Keras 2 have.

    Raises:
        TypeError: there is no such option.
        ValueError: one has another value than in these configs.
    """
    for option, value in options.items():
        if option not in _OF_KERAS_2:
            raise TypeError(f"optimizers of twml_ops have no argument {option!r}")
        if value:
            raise ValueError(f"{option} must be False, got {value!r}")


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
