"""The models of other libraries, one file for each.

| name | model |
|---|---|
| `logistic_regression` | scikit-learn's logistic regression on one-hot features |
| `lightgbm` | gradient-boosted trees on numbers and out-of-fold statistics of categories |
| `catboost` | gradient-boosted trees with CatBoost's own treatment of categories |
| `deepfm` | a DeepFM made of Keras' own layers |
"""

from __future__ import annotations

import importlib

from benchmarks.quality.peer import Peer

_CLASSES = {
    "logistic_regression": ("sklearn", "LogisticRegression"),
    "lightgbm": ("lightgbm", "LightGBM"),
    "catboost": ("catboost", "CatBoost"),
    "deepfm": ("keras", "DeepFM"),
}


def names() -> list[str]:
    """The names of the peers."""
    return list(_CLASSES)


def create(name: str, threads: int) -> Peer:
    """A peer by its name.

    Args:
        name: the name of the peer.
        threads: number of threads that it may use.

    Raises:
        ImportError: its library is not installed.
    """
    library, class_name = _CLASSES[name]
    importlib.import_module(library)
    module = importlib.import_module(f"benchmarks.quality.peers.{name}")
    peer: Peer = getattr(module, class_name)(threads)
    return peer
