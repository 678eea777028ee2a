"""mpi4py, imported when the first group is made and in the mode that this package needs."""

from __future__ import annotations

from typing import Any


def mpi() -> Any:
    """The module `mpi4py.MPI`, initialized for calls from several threads.

    Returns:
        The module.

    Raises:
        ImportError: mpi4py or a library of MPI is not installed.
        RuntimeError: MPI was initialized before, for calls from one thread only.
    """
    try:
        import mpi4py
    except ImportError as e:
        raise ImportError("peer-to-peer training needs mpi4py: pip install 'twml_ops[mpi]'") from e
    mpi4py.rc.thread_level = "multiple"
    mpi4py.rc.finalize = False  # `PeerGroup.close` does it
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as e:
        raise ImportError(
            f"mpi4py found no library of MPI ({e}): pip install 'twml_ops[mpi]'"
        ) from e
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise RuntimeError("MPI must be initialized with MPI_THREAD_MULTIPLE for its watchdog")
    return MPI


def is_installed() -> bool:
    """Whether mpi4py can be imported; it does not initialize MPI."""
    import importlib.util

    return importlib.util.find_spec("mpi4py") is not None
