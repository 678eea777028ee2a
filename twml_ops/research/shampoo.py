"""Shampoo: preconditioning with Kronecker factors, for dense weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import tensorflow as tf

from twml_ops._keras import KERAS_3, serializable
from twml_ops.ops._tape import tf_variable
from twml_ops.optimizers.keras_options import check_other_options, initialize_keras
from twml_ops.research._inverse_roots import RootMethod, inverse_roots
from twml_ops.research._replica_variables import on_replica, replica_devices
from twml_ops.research._shampoo_blocks import (
    BlockState,
    assign_owners,
    blocks_of,
    join_blocks,
    multiply_axes,
    preconditioned_shape,
    products_along_axes,
    state_size,
)

Grafting = Literal["sgd", "adagrad", "adam"]


@serializable
class Shampoo(tf.keras.optimizers.Optimizer):
    """Preconditions the gradient of each axis of a dense weight with a matrix.

    Gupta et al. 2018, "Shampoo: Preconditioned Stochastic Tensor Optimization"; blocks, grafting
    and the division over replicas as in Shi et al. 2023, "A Distributed Data-Parallel PyTorch
    Implementation of the Distributed Shampoo Optimizer for Training Neural Networks At-Scale".

    A weight is divided into blocks of at most `max_preconditioner_dim` along each axis; axes of
    length 1 do not count. For the gradient G of a block of order k (2 for a matrix), in step t:

    - The statistic L_i of axis i adds up G_i G_i^T, where G_i is G as a matrix with a row for each
      position on the axis. With `beta_2` < 1 it is their exponential average.
    - From step `start_preconditioning_step` on, every `precondition_frequency` steps, the roots
      R_i = (L_i + epsilon trace(L_i) / d I)^(-1 / (2 k)) are computed.
    - M is G, or with `beta_1` > 0 the exponential average of the gradients, divided by
      1 - beta_1^t. The direction P is M, multiplied with R_i along each axis i.
    - The length of P becomes that of the direction of another optimizer (grafting): M for "sgd";
      M / (sqrt(V) + grafting_epsilon), where V is the sum of G^2 for "adagrad", and for "adam" its
      exponential average with `grafting_beta_2`, divided by 1 - grafting_beta_2^t. Before
      `start_preconditioning_step` that direction is taken.
    - The weight decreases by the learning rate times the direction.

    The state is at least twice as large as the weights, and roots take a time of d^3. Replicas of a
    `MirroredStrategy` divide it: each block belongs to one of them, which keeps its state and
    computes its direction. The directions are sent to the others. Blocks are divided by the size of
    their state. Files and checkpoints do not depend on the number of replicas.

    Sparse gradients are refused: use `CompositeOptimizer(Shampoo(), {"table": Adagrad()})`. The
    update is not made for XLA; compile models that have no layer of this package with
    `jit_compile=False`.

    Args:
        learning_rate: float, or any Keras schedule; that of the grafted optimizer suits.
        beta_1: the decay rate of the average of the gradients, in [0, 1); 0: none.
        beta_2: the decay rate of the statistics, in (0, 1]; 1: their sum.
        epsilon: damping of the roots, relative to the mean eigenvalue; positive.
        max_preconditioner_dim: largest length of a block along an axis, positive.
        start_preconditioning_step: first step, from 1, with preconditioning.
        precondition_frequency: steps between two computations of the roots, positive.
        grafting: "sgd", "adagrad" or "adam".
        grafting_beta_2: the decay rate of the squared gradients of "adam", in (0, 1).
        grafting_epsilon: added to the root of the squared gradients, positive.
        root_method: "eigh": eigendecomposition; "coupled_newton": the coupled Newton iteration,
            which consists of matrix products. Roots that are inaccurate in float32 are computed
            again in float64. A statistic without a finite root keeps the root before.
        name: the name of the optimizer; by default that of the class.
        weight_decay: each step, weights first lose `learning_rate * weight_decay` times themselves.
        clipnorm: limit of each gradient's L2 norm.
        clipvalue: limit of each gradient element's absolute value.
        global_clipnorm: limit of the L2 norm of all gradients together.
        use_ema: whether Keras keeps exponential moving averages of the weights.
        ema_momentum: the momentum of the moving averages, in [0, 1].
        ema_overwrite_frequency: steps after which the averages replace the weights; None: at the
            end of `fit`.
        loss_scale_factor: the loss is multiplied by it, and gradients are divided by it (Keras 3).
        gradient_accumulation_steps: number of steps whose gradients make one update, at least 2
            (Keras 3).
        **kwargs: `jit_compile` and `is_legacy_optimizer` of Keras 2, which must be False.

    Raises:
        ValueError: an argument is out of range; or, when it is built, the strategy has replicas in
            other processes; or, when it is applied, a gradient is sparse.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        max_preconditioner_dim: int = 256,
        start_preconditioning_step: int = 10,
        precondition_frequency: int = 10,
        grafting: Grafting = "adam",
        grafting_beta_2: float = 0.999,
        grafting_epsilon: float = 1e-8,
        root_method: RootMethod = "eigh",
        name: str | None = None,
        *,
        weight_decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        loss_scale_factor: float | None = None,
        gradient_accumulation_steps: int | None = None,
        **kwargs: Any,
    ) -> None:
        check_other_options(type(self), kwargs)
        _check("beta_1", beta_1, "in [0, 1)", 0 <= beta_1 < 1)
        _check("beta_2", beta_2, "in (0, 1]", 0 < beta_2 <= 1)
        _check("epsilon", epsilon, "positive and finite", 0 < epsilon < float("inf"))
        for argument, value in (
            ("max_preconditioner_dim", max_preconditioner_dim),
            ("start_preconditioning_step", start_preconditioning_step),
            ("precondition_frequency", precondition_frequency),
        ):
            _check(argument, value, "a positive integer", value == int(value) and value >= 1)
        _check("grafting", grafting, "one of sgd, adagrad, adam", grafting in _GRAFTINGS)
        _check("grafting_beta_2", grafting_beta_2, "in (0, 1)", 0 < grafting_beta_2 < 1)
        _check("grafting_epsilon", grafting_epsilon, "positive", grafting_epsilon > 0)
        known = root_method in ("eigh", "coupled_newton")
        _check("root_method", root_method, "one of eigh, coupled_newton", known)
        initialize_keras(
            *(self, super().__init__, learning_rate),
            loss_scale_factor=loss_scale_factor,
            gradient_accumulation_steps=gradient_accumulation_steps,
            name=name or type(self).__name__,
            weight_decay=weight_decay,
            clipnorm=clipnorm,
            clipvalue=clipvalue,
            global_clipnorm=global_clipnorm,
            use_ema=use_ema,
            ema_momentum=ema_momentum,
            ema_overwrite_frequency=ema_overwrite_frequency,
        )
        self.beta_1 = float(beta_1)
        self.beta_2 = float(beta_2)
        self.epsilon = float(epsilon)
        self.max_preconditioner_dim = int(max_preconditioner_dim)
        self.start_preconditioning_step = int(start_preconditioning_step)
        self.precondition_frequency = int(precondition_frequency)
        self.grafting = grafting
        self.grafting_beta_2 = float(grafting_beta_2)
        self.grafting_epsilon = float(grafting_epsilon)
        self.root_method = root_method
        self._shampoo_state: _State | None = None

    def build(self, variables: Sequence[Any]) -> None:
        """Creates the state of every weight.

        Args:
            variables: all that the optimizer will update.

        Raises:
            ValueError: the strategy has replicas in other processes.
        """
        if self._shampoo_state is not None:
            return
        devices = replica_devices(self._distribution_strategy)
        self._shampoo_state = _State(devices)
        super().build(variables)
        self._built = True
        # Accumulated gradients (Keras 3) have steps without an update.
        self._updates = self._add("updates", (), "zeros", tf.int64)
        kept = {"averages_gradient": self.beta_1 > 0, "grafts_squares": self.grafting != "sgd"}
        shapes = [preconditioned_shape(v.shape) for v in variables]
        blocks = [blocks_of(shape, self.max_preconditioner_dim) for shape in shapes]
        costs = [state_size(block, **kept) for every in blocks for block in every]
        owners = iter(assign_owners(costs, len(devices)))
        for variable, every in zip(variables, blocks, strict=True):
            states = []
            for number, block in enumerate(every):
                owner = next(owners)
                add = self._adds_for(variable, number, devices[owner])
                states.append(BlockState(block, owner, add, **kept))
            self._shampoo_state.blocks[self._var_key(variable)] = states

    def _adds_for(self, variable: Any, number: int, device: str) -> Callable[..., Any]:
        owner = str(getattr(variable, "path", variable.name)).replace("/", "_").replace(":", "_")
        dtype = _state_dtype(variable.dtype)

        def add(name: str, shape: Sequence[int], initializer: str) -> Any:
            full = f"{owner}_{number}_{name}"
            return on_replica(device, lambda: self._add(full, shape, initializer, dtype))

        return add

    def _add(self, name: str, shape: Sequence[int], initializer: str, dtype: tf.DType) -> Any:
        return self.add_variable(
            shape=tuple(shape),
            initializer=initializer,
            dtype=dtype.name if KERAS_3 else dtype,
            name=name,
        )

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any = None) -> None:
        """Does nothing: all weights are updated together.

        Args:
            gradient: not used.
            variable: not used.
            learning_rate: not used.
        """

    def _distributed_tf_update_step(
        self, distribution: Any, grads_and_vars: Any, learning_rate: Any
    ) -> None:
        """Keras 3: updates all weights, outside of the replicas."""
        self._update_all(distribution, grads_and_vars, learning_rate)

    def _distributed_apply_gradients_fn(
        self, distribution: Any, grads_and_vars: Any, **kwargs: Any
    ) -> Any:
        """Keras 2: updates all weights, outside of the replicas, and counts the step."""
        self._update_all(distribution, grads_and_vars, self.learning_rate)
        return super()._distributed_apply_gradients_fn(distribution, grads_and_vars, **kwargs)

    def _update_all(self, strategy: Any, grads_and_vars: Any, learning_rate: Any) -> None:
        assert self._shampoo_state is not None
        pairs = [(g, v) for g, v in grads_and_vars if g is not None]
        for gradient, variable in pairs:
            if isinstance(strategy.experimental_local_results(gradient)[0], tf.IndexedSlices):
                raise ValueError(
                    "Shampoo takes dense gradients, got tf.IndexedSlices for "
                    f"{getattr(variable, 'path', variable.name)!r}: give it another optimizer, "
                    "as in CompositeOptimizer(Shampoo(), {'table': Adagrad()})"
                )
        self._updates.assign_add(1)
        step = tf.convert_to_tensor(self._updates)
        states = [self._shampoo_state.blocks[self._var_key(v)] for _, v in pairs]
        directions: dict[int, tf.Tensor] = {}
        for replica, device in enumerate(self._shampoo_state.devices):
            with tf.device(device or None):
                own = [
                    (state, strategy.experimental_local_results(g)[replica])
                    for (g, _), every in zip(pairs, states, strict=True)
                    for state in every
                    if state.owner == replica
                ]
                directions.update(self._directions(own, step))
        for (_, variable), every in zip(pairs, states, strict=True):
            if every:
                parts = [directions[id(state)] for state in every]
                self._apply_directions(strategy, variable, parts, learning_rate)

    def _apply_directions(
        self, strategy: Any, variable: Any, parts: Sequence[tf.Tensor], learning_rate: Any
    ) -> None:
        """Updates the copy of a weight on each replica."""
        assert self._shampoo_state is not None
        devices, shape = self._shampoo_state.devices, preconditioned_shape(variable.shape)

        def received(context: Any) -> tf.Tensor:
            with tf.device(devices[context.replica_id_in_sync_group] or None):
                whole = join_blocks(parts, shape, self.max_preconditioner_dim)
                whole = tf.reshape(whole * tf.cast(learning_rate, whole.dtype), variable.shape)
                return tf.cast(whole, variable.dtype)

        if len(devices) == 1:
            variable.assign_sub(received(_ONE_REPLICA))
            return
        change = strategy.experimental_distribute_values_from_function(received)
        strategy.extended.update(
            tf_variable(variable), lambda v, c: v.assign_sub(c), args=(change,), group=False
        )

    def _directions(
        self, own: Sequence[tuple[BlockState, tf.Tensor]], step: tf.Tensor
    ) -> dict[int, tf.Tensor]:
        """The directions of the blocks of one replica, by the ids of their states."""
        due = (step >= self.start_preconditioning_step) & (
            (step - self.start_preconditioning_step) % self.precondition_frequency == 0
        )
        gradients, statistics = [], []
        for state, whole in own:
            dtype = tf.as_dtype(state.statistics[0].dtype)
            whole = tf.cast(tf.reshape(whole, preconditioned_shape(whole.shape)), dtype)
            gradient = tf.slice(whole, state.block.begin, state.block.shape)
            gradients.append(gradient)
            for variable, product in zip(
                state.statistics, products_along_axes(gradient), strict=True
            ):
                statistics.append(self._accumulate(variable, product, self.beta_2))
        self._update_roots([state for state, _ in own], statistics, due)
        return {
            id(state): self._direction(state, gradient, step)
            for (state, _), gradient in zip(own, gradients, strict=True)
        }

    def _accumulate(self, variable: Any, value: tf.Tensor, beta: float) -> tf.Tensor:
        """Adds a value to a sum (beta = 1) or an exponential average, and returns that."""
        old = tf.convert_to_tensor(variable)
        new = old + value if beta == 1 else beta * old + (1 - beta) * value
        variable.assign(new)
        return new

    def _update_roots(
        self,
        states: Sequence[BlockState],
        statistics: Sequence[tf.Tensor],
        due: tf.Tensor,
    ) -> None:
        """Computes the roots of all statistics where `due` is true, equal sizes by one op."""
        by_size: dict[Any, list[tuple[Any, tf.Tensor]]] = {}
        every = iter(statistics)
        for state in states:
            for root in state.roots:
                statistic = next(every)
                key = (statistic.shape[0], 2 * state.block.order, statistic.dtype)
                by_size.setdefault(key, []).append((root, statistic))

        def compute() -> tf.Tensor:
            for (_, order, _), members in by_size.items():
                matrices = tf.stack([statistic for _, statistic in members])
                found, good = inverse_roots(matrices, order, self.epsilon, self.root_method)
                for i, (root, _) in enumerate(members):
                    root.assign(tf.where(good[i], found[i], tf.convert_to_tensor(root)))
            return tf.constant(0)

        if by_size:
            tf.cond(due, compute, lambda: tf.constant(0))

    def _direction(self, state: BlockState, gradient: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """The direction of a block, after grafting."""
        dtype, mean = gradient.dtype, gradient
        if state.gradient is not None:
            mean = self._accumulate(state.gradient, gradient, self.beta_1)
            mean /= _bias_correction(self.beta_1, step, dtype)
        grafted = mean
        if state.squares is not None:
            beta = self.grafting_beta_2 if self.grafting == "adam" else 1.0
            squares = self._accumulate(state.squares, tf.square(gradient), beta)
            squares /= _bias_correction(beta, step, dtype)
            grafted = mean / (tf.sqrt(squares) + self.grafting_epsilon)
        roots = [tf.convert_to_tensor(root) for root in state.roots]
        preconditioned = multiply_axes(mean, roots)
        length = tf.norm(preconditioned)
        scale = tf.math.divide_no_nan(tf.norm(grafted), length)
        return tf.where(step >= self.start_preconditioning_step, preconditioned * scale, grafted)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        config = super().get_config()
        if not KERAS_3:
            config["learning_rate"] = self._serialize_hyperparameter(self._learning_rate)
        return {**config, **{name: getattr(self, name) for name in _ARGUMENTS}}


_GRAFTINGS = ("sgd", "adagrad", "adam")
_ARGUMENTS = (
    *("beta_1", "beta_2", "epsilon", "max_preconditioner_dim", "start_preconditioning_step"),
    *("precondition_frequency", "grafting", "grafting_beta_2", "grafting_epsilon", "root_method"),
)


class _OneReplica:
    """The context of the only replica."""

    replica_id_in_sync_group = 0


_ONE_REPLICA = _OneReplica()


class _State:
    """The blocks of every weight. Keras does not look into it: it finds the variables by itself.

    Args:
        devices: the devices of the replicas.

    Attributes:
        devices: the devices of the replicas.
        blocks: key of a weight → its blocks, in order.
    """

    def __init__(self, devices: list[str]) -> None:
        self.devices = devices
        self.blocks: dict[Any, list[BlockState]] = {}


def _state_dtype(dtype: Any) -> tf.DType:
    return tf.float64 if tf.as_dtype(dtype) == tf.float64 else tf.float32


def _bias_correction(beta: float, step: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """1 - beta^step; 1 for a sum."""
    if beta == 1:
        return tf.ones([], dtype)
    # In float64: beta^step is near 1 in the first steps.
    power = tf.pow(tf.constant(beta, tf.float64), tf.cast(step, tf.float64))
    return tf.cast(1 - power, dtype)


def _check(argument: str, value: Any, expected: str, fits: bool) -> None:
    if not fits:
        raise ValueError(f"{argument} must be {expected}, got {value!r}")
