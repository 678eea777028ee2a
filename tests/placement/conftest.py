"""The fixtures `pair` and `strategy` of tests/distribute."""

from tests.distribute.conftest import pair, strategy

__all__ = ["pair", "strategy"]
