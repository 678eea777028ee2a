"""A place in the input, from which reading continues."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class InputPosition:
    """How much of the input has been consumed: whole epochs, and examples of the current one.

    The order of the examples of an epoch is given by the seed and the number of the epoch. A
    dataset that starts at a position therefore continues with the batches that would have followed
    (`Source.dataset`). The batch size may change in between.

    Attributes:
        seed: the seed of the order of the examples; None: they are read in order.
        epoch: how many epochs have been consumed as a whole.
        examples: how many examples of the next epoch have been consumed.

    Raises:
        ValueError: a value is no integer, or `epoch` or `examples` is negative.
    """

    seed: int | None = None
    epoch: int = 0
    examples: int = 0

    def __post_init__(self) -> None:
        for name in ("epoch", "examples"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 0:
                raise ValueError(f"{name} must be an integer of at least 0, got {value!r}")
        if self.seed is not None and not isinstance(self.seed, int):
            raise ValueError(f"seed must be an integer or None, got {self.seed!r}")

    def after(
        self, batches: int, batch_size: int, num_examples: int, drop_remainder: bool = False
    ) -> InputPosition:
        """The position after some batches, which may reach into later epochs.

        Args:
            batches: how many batches have been consumed since this position.
            batch_size: examples in a batch.
            num_examples: examples in an epoch, `Source.num_examples()`.
            drop_remainder: whether a last short batch of an epoch is left out.

        Returns:
            The position; at the end of an epoch it is the beginning of the next one.

        Raises:
            ValueError: an epoch has no batches, or this position is beyond its end.
        """
        left = num_examples - self.examples
        whole, first = (
            n // batch_size if drop_remainder else -(-n // batch_size) for n in (num_examples, left)
        )
        if whole < 1 or left < 0:
            raise ValueError(
                f"num_examples must be enough for a batch and at least {self.examples}, the "
                f"examples consumed, got {num_examples}"
            )
        if batches < first:
            return dataclasses.replace(self, examples=self.examples + batches * batch_size)
        epochs, batches = divmod(batches - first, whole)
        return dataclasses.replace(
            self, epoch=self.epoch + 1 + epochs, examples=batches * batch_size
        )

    def as_dict(self) -> dict[str, Any]:
        """The position as values that JSON has.

        Returns:
            The attributes by name.
        """
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> InputPosition:
        """Reads what `as_dict` returned.

        Args:
            values: the attributes by name.

        Returns:
            The position.

        Raises:
            ValueError: names or values that a position does not have.
        """
        names = {field.name for field in dataclasses.fields(InputPosition)}
        if set(values) != names:
            raise ValueError(f"an input position has {sorted(names)}, got {sorted(values)}")
        return InputPosition(**values)
