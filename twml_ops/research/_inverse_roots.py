"""Inverse roots of symmetric positive semidefinite matrices, A^(-1/p)."""

from __future__ import annotations

from typing import Literal, NamedTuple

import tensorflow as tf

RootMethod = Literal["eigh", "coupled_newton"]

_TINY = 1e-30  # the smallest damping, that of a matrix of zeros
_MAX_NEWTON_STEPS = 100


class _Roots(NamedTuple):
    """Roots [n, d, d], and which of them are accurate, bool [n]."""

    roots: tf.Tensor
    accurate: tf.Tensor


def inverse_roots(
    matrices: tf.Tensor, order: int, epsilon: float, method: RootMethod
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes (A + epsilon trace(A) / d I)^(-1 / order) for each matrix A.

    Matrices whose float32 root is inaccurate are computed again in float64.

    Args:
        matrices: float32 or float64 [n, d, d], symmetric positive semidefinite up to rounding.
        order: p, positive.
        epsilon: damping, relative to the mean of the eigenvalues.
        method: "eigh": by eigendecomposition. "coupled_newton": by the coupled Newton iteration,
            which consists of matrix products.

    Returns:
        The roots, [n, d, d], and bool [n]: whether each is finite and accurate. The others are
        the identity.
    """
    compute = {"eigh": _by_eigendecomposition, "coupled_newton": _by_newton}[method]
    identity = tf.eye(int(matrices.shape[-1]), dtype=matrices.dtype)
    finite = tf.reduce_all(tf.math.is_finite(matrices), [1, 2])
    # A decomposition of a matrix with NaN raises an error for all of them.
    known = tf.where(finite[:, None, None], matrices, identity)
    known = 0.5 * known + 0.5 * tf.linalg.matrix_transpose(known)
    found = compute(known, _damping(known, epsilon), order)
    if matrices.dtype != tf.float64:

        def again() -> tuple[tf.Tensor, tf.Tensor]:
            exact = tf.cast(known, tf.float64)
            second = compute(exact, _damping(exact, epsilon), order)
            roots = tf.cast(second.roots, matrices.dtype)
            kept = tf.where(found.accurate[:, None, None], found.roots, roots)
            return kept, found.accurate | second.accurate

        accurate = tf.reduce_all(found.accurate)
        found = _Roots(*tf.cond(accurate, lambda: (found.roots, found.accurate), again))
    good = finite & found.accurate
    return tf.where(good[:, None, None], found.roots, identity), good


def _damping(matrices: tf.Tensor, epsilon: float) -> tf.Tensor:
    mean = tf.linalg.trace(matrices / int(matrices.shape[-1]))
    return tf.maximum(epsilon * mean, tf.cast(_TINY, matrices.dtype))


def _by_eigendecomposition(matrices: tf.Tensor, damping: tf.Tensor, order: int) -> _Roots:
    values, vectors = tf.linalg.eigh(matrices)
    # Rounding errors make small eigenvalues negative: all are shifted by the lowest one, as in
    # Shi et al. 2023, section 3.2.
    shifted = values - tf.minimum(values[:, :1], 0) + damping[:, None]
    powers = tf.pow(shifted, tf.cast(-1.0 / order, matrices.dtype))
    roots = tf.matmul(vectors * powers[:, None, :], vectors, transpose_b=True)
    residuals = tf.matmul(matrices, vectors) - vectors * values[:, None, :]
    errors = tf.reduce_max(tf.abs(residuals), [1, 2])
    largest = tf.reduce_max(tf.abs(values), 1)
    return _Roots(roots, (errors <= 1e-4 * largest) & _are_finite(roots))


def _by_newton(matrices: tf.Tensor, damping: tf.Tensor, order: int) -> _Roots:
    """Guo and Higham 2006, "A Schur-Newton Method for the Matrix pth Root and its Inverse".

    X is the root of the scaled matrix times M^(1/p), and M goes to the identity:
    T = ((p + 1) I - M) / p, X <- X T, M <- T^p M.
    """
    dtype = matrices.dtype
    identity = tf.eye(int(matrices.shape[-1]), dtype=dtype)
    damped = matrices + damping[:, None, None] * identity
    # The eigenvalues of M are in (0, p + 1), where the iteration converges.
    scale = (order + 1) / (2 * tf.norm(damped, axis=[1, 2]))
    tolerance = 1e-6 if dtype == tf.float32 else 1e-12

    def distance(m: tf.Tensor) -> tf.Tensor:
        return tf.norm(m - identity, axis=[1, 2])  # of the eigenvalues; no step increases it

    def proceed(step: tf.Tensor, x: tf.Tensor, m: tf.Tensor, error: tf.Tensor) -> tf.Tensor:
        del x, m
        return (step < _MAX_NEWTON_STEPS) & tf.reduce_any(error > tolerance)

    def advance(
        step: tf.Tensor, x: tf.Tensor, m: tf.Tensor, error: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        factor = ((order + 1) * identity - m) / order
        next_x, next_m = tf.matmul(x, factor), m
        for _ in range(order):
            next_m = tf.matmul(factor, next_m)
        next_error = distance(next_m)
        # Near the solution, and with NaN, rounding errors grow: such a matrix keeps its best root.
        better = next_error < error
        chosen = better[:, None, None]
        return (
            step + 1,
            tf.where(chosen, next_x, x),
            tf.where(chosen, next_m, m),
            # An error of 0 ends the iteration of a matrix that no longer becomes better.
            tf.where(better, next_error, tf.zeros_like(error)),
        )

    m = damped * scale[:, None, None]
    x = tf.pow(scale, tf.cast(1.0 / order, dtype))[:, None, None] * identity
    start = tf.fill(tf.shape(scale), tf.cast(float("inf"), dtype))
    _, roots, last, _ = tf.while_loop(proceed, advance, [tf.constant(0), x, m, start])
    return _Roots(roots, (distance(last) <= 1e-3) & _are_finite(roots))


def _are_finite(matrices: tf.Tensor) -> tf.Tensor:
    return tf.reduce_all(tf.math.is_finite(matrices), [1, 2])
