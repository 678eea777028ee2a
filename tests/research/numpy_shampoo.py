"""Shampoo in NumPy and float64, from the formulas: one weight, one block after the other."""

import itertools

import numpy as np


def inverse_root(matrix, order, epsilon):
    """(A + epsilon trace(A) / d I)^(-1 / order)."""
    d = len(matrix)
    values, vectors = np.linalg.eigh(matrix + epsilon * np.trace(matrix) / d * np.eye(d))
    return vectors @ np.diag(values ** (-1 / order)) @ vectors.T


def unfolded(tensor, axis):
    """The tensor as a matrix with a row for each position on the axis."""
    return np.moveaxis(tensor, axis, 0).reshape(tensor.shape[axis], -1)


def multiplied(tensor, matrix, axis):
    """The tensor, multiplied along one axis."""
    return np.moveaxis(np.tensordot(matrix, tensor, (1, axis)), 0, axis)


class Block:
    """The state of one block."""

    def __init__(self, shape):
        self.statistics = [np.zeros((d, d)) for d in shape]
        self.roots = [np.eye(d) for d in shape]
        self.mean, self.squares = np.zeros(shape), np.zeros(shape)


class NumpyShampoo:
    """Updates weights that are NumPy arrays."""

    def __init__(self, learning_rate, **options):
        self.learning_rate = learning_rate
        self.options = options
        self.step = 0
        self.blocks = {}

    def update(self, number, weight, gradient):
        """The weight with this number after a step with a gradient."""
        shape = [d for d in weight.shape if d > 1] or [1]
        flat, gradient = weight.reshape(shape), gradient.reshape(shape).astype(np.float64)
        new, size = flat.copy(), self.options["max_preconditioner_dim"]
        for corner in itertools.product(*(range(0, d, size) for d in shape)):
            part = tuple(slice(c, c + size) for c in corner)
            block = self.blocks.setdefault((number, corner), Block(gradient[part].shape))
            new[part] -= self.learning_rate * self.direction(block, gradient[part])
        return new.reshape(weight.shape)

    def direction(self, block, g):
        """The direction of a block in step `self.step`."""
        o, t, axes = self.options, self.step, range(g.ndim)
        for i in axes:
            product = unfolded(g, i) @ unfolded(g, i).T
            if o["beta_2"] == 1:
                block.statistics[i] += product
            else:
                block.statistics[i] = (
                    o["beta_2"] * block.statistics[i] + (1 - o["beta_2"]) * product
                )
        start, frequency = o["start_preconditioning_step"], o["precondition_frequency"]
        if t >= start and (t - start) % frequency == 0:
            roots = [inverse_root(s, 2 * g.ndim, o["epsilon"]) for s in block.statistics]
            block.roots = roots
        block.mean = o["beta_1"] * block.mean + (1 - o["beta_1"]) * g
        mean = block.mean / (1 - o["beta_1"] ** t)
        grafted = mean
        if o["grafting"] == "adagrad":
            block.squares = block.squares + g**2
            grafted = mean / (np.sqrt(block.squares) + o["grafting_epsilon"])
        if o["grafting"] == "adam":
            beta = o["grafting_beta_2"]
            block.squares = beta * block.squares + (1 - beta) * g**2
            average = block.squares / (1 - beta**t)
            grafted = mean / (np.sqrt(average) + o["grafting_epsilon"])
        if t < start:
            return grafted
        direction = mean
        for i in axes:
            direction = multiplied(direction, block.roots[i], i)
        return direction * np.linalg.norm(grafted) / np.linalg.norm(direction)
