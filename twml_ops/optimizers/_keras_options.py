"""Arguments of optimizers that only one of Keras 2 and Keras 3 has."""

from __future__ import annotations

from typing import Any

from twml_ops._keras import VERSION, optimizer_takes

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


def options_of_keras_3(**options: Any) -> dict[str, Any]:
    """Those options that the running Keras has.

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
