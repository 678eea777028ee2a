"""Every option of every optimizer has the same effect inside every wrapper as without one."""

import inspect

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import distribute, layers, optimizers
from twml_ops._keras import KERAS_3, optimizer_takes
from twml_ops.placement import placement_of

N, D, STEPS = 12, 4, 4
CLASSES = [
    c
    for c in (getattr(optimizers, name) for name in optimizers.__all__)
    if inspect.isclass(c)
    and issubclass(c, optimizers.SparseOptimizer)
    and c is not optimizers.SparseOptimizer
]
# A value of each option that differs from its default. Scales are powers of two, so that dividing
# by them keeps all bits.
OPTIONS = {
    "learning_rate": {"learning_rate": 0.25},
    "concurrency": {"concurrency": "hogwild"},
    "rounding_seed": {"rounding_seed": 5},
    "weight_decay": {"weight_decay": 0.5},
    "clipnorm": {"clipnorm": 0.5},
    "clipvalue": {"clipvalue": 0.25},
    "global_clipnorm": {"global_clipnorm": 0.5},
    "use_ema": {"use_ema": True},
    "ema_momentum": {"use_ema": True, "ema_momentum": 0.5},
    "ema_overwrite_frequency": {"use_ema": True, "ema_overwrite_frequency": 2},
    "loss_scale_factor": {"loss_scale_factor": 1024.0},
    "gradient_accumulation_steps": {"gradient_accumulation_steps": 2},
    "momentum": {"momentum": 0.5},
    "nesterov": {"nesterov": True},
    "initial_accumulator_value": {"initial_accumulator_value": 0.5},
    "epsilon": {"epsilon": 0.01},
    "beta_1": {"beta_1": 0.5},
    "beta_2": {"beta_2": 0.5},
    "learning_rate_power": {"learning_rate_power": -0.25},
    "l1_regularization_strength": {"l1_regularization_strength": 0.01},
    "l2_regularization_strength": {"l2_regularization_strength": 0.01},
    "l2_shrinkage_regularization_strength": {"l2_shrinkage_regularization_strength": 0.01},
    "beta": {"beta": 0.5},
}
# Options of the base class do not depend on the rule: one class shows them.
COMMON = set(inspect.signature(optimizers.SparseOptimizer).parameters) - {"learning_rate"}


def parameters_of(cls):
    """Every keyword of a class, with the options of all optimizers."""
    base = inspect.signature(optimizers.SparseOptimizer).parameters
    return {**base, **inspect.signature(cls).parameters}


NOT_OPTIONS = {"name", "kwargs", "options"}
CASES = [
    (cls, option)
    for cls in CLASSES
    for option in parameters_of(cls)
    if option not in NOT_OPTIONS and (option not in COMMON or cls is optimizers.Adagrad)
]


def made(cls, option):
    for name in OPTIONS[option]:
        if name in ("loss_scale_factor", "gradient_accumulation_steps") and not optimizer_takes(
            name
        ):
            pytest.skip("an option of Keras 3")
    return cls(**{"learning_rate": 0.1, **OPTIONS[option]})


def rest():
    return optimizers.SGD(0.0)


WRAPPERS = {
    "composite of scales": lambda o: optimizers.CompositeOptimizer(
        optimizers.SGD(0.0, **({"loss_scale_factor": 64.0} if KERAS_3 else {})),
        {"table|dense|kernel": o},
    ),
    "composite of composites": lambda o: optimizers.CompositeOptimizer(
        rest(), {"table|dense": optimizers.CompositeOptimizer(rest(), {".": o})}
    ),
    "loss scale": optimizers.LossScaleOptimizer,
    "loss scale of keras": tf.keras.mixed_precision.LossScaleOptimizer,
    "scaled composite": lambda o: optimizers.LossScaleOptimizer(
        optimizers.CompositeOptimizer(rest(), {"table|dense": o})
    ),
    "composite with a scaled part": lambda o: optimizers.CompositeOptimizer(
        rest(), {"table|dense": optimizers.LossScaleOptimizer(o)}
    ),
}


def gradients():
    """Ids and rows of a table, a dense gradient, and that of a variable of another part."""
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        yield (
            rng.integers(0, N, 5),
            rng.normal(size=(5, D)).astype(np.float32),
            rng.normal(size=(D, 1)).astype(np.float32),
        )


def initial(shape):
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def variable(name, shape):
    kind = tf.keras.Variable if KERAS_3 else tf.Variable
    return kind(initial(shape), name=name)


def trained(optimizer, compiled=False):
    """The bits of a table and a matrix after some steps."""
    variables = [variable("table", (N, D)), variable("dense", (D, 1)), variable("other", (2,))]

    def step(ids, rows, dense):
        scale = optimizer.scale_loss(tf.constant(1.0)) if KERAS_3 else 1.0
        sparse = tf.IndexedSlices(rows * scale, ids, tf.constant([N, D], tf.int64))
        grads = [sparse, dense * scale, tf.zeros([2]) * scale]
        optimizer.apply_gradients(list(zip(grads, variables, strict=True)))

    optimizer.build(variables)
    run = tf.function(step, autograph=False) if compiled else step
    for gradient in gradients():
        run(*map(tf.constant, gradient))
    return [v.numpy().tobytes() for v in variables[:2]]


def test_every_option_of_every_optimizer_has_a_value_here():
    options = {n for c in CLASSES for n in parameters_of(c)}
    assert options - NOT_OPTIONS == set(OPTIONS)
    for values in OPTIONS.values():
        for name, value in values.items():
            defaults = [parameters_of(c).get(name) for c in CLASSES]
            assert all(p is None or p.default != value for p in defaults), name


@pytest.mark.parametrize(("cls", "option"), CASES)
def test_every_option_inside_every_wrapper_equals_the_plain_one(cls, option):
    want = trained(made(cls, option))
    # What wrappers do with hyperparameters does not depend on which one it is.
    names = list(WRAPPERS) if option in COMMON else ["composite with a scaled part"]
    for name in names:
        assert trained(WRAPPERS[name](made(cls, option))) == want, name


@pytest.mark.parametrize("wrapper", ["composite of scales", "composite with a scaled part"])
@pytest.mark.parametrize("option", ["clipnorm", "use_ema", "gradient_accumulation_steps"])
def test_wrapped_options_equal_the_plain_ones_in_a_function(option, wrapper):
    want = trained(made(optimizers.Adagrad, option), compiled=True)
    assert trained(WRAPPERS[wrapper](made(optimizers.Adagrad, option)), compiled=True) == want


# Options that need a whole table, or one in memory.
REFUSED = {
    "sharded": {"clipnorm", "global_clipnorm", "gradient_accumulation_steps"},
    "tiered": {"concurrency", "use_ema", "ema_momentum", "ema_overwrite_frequency"},
}


def table_of(place, make, folder):
    """The bits of a table that is trained in a file, or on two replicas."""
    strategy = distribute.mirrored_strategy(2) if place == "sharded" else None
    options = {
        "memory": {"placement": "host"},
        "sharded": {"placement": "sharded"},
        "tiered": {"storage": layers.Tiered(str(folder), 16)},
    }[place]
    rows = 40
    with strategy.scope() if strategy else tf.name_scope("whole"):
        layer = layers.SparseLinear(
            D, rows, kernel_initializer=lambda *_, **__: tf.constant(initial((rows, D))),
            name="table", **options,
        )  # fmt: skip
        layer.build(None)
        optimizer = make()
        optimizer.build([layer.kernel])

    def step(ids, values):
        size = rows
        if strategy is not None:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            own = tf.math.floormod(ids, 2) == tf.cast(replica, ids.dtype)
            ids, values, size = tf.boolean_mask(ids, own) // 2, tf.boolean_mask(values, own), 20
        scale = optimizer.scale_loss(tf.constant(1.0)) if KERAS_3 else 1.0
        gradient = tf.IndexedSlices(values * scale, ids, tf.constant([size, D], tf.int64))
        optimizer.apply_gradients([(gradient, layer.kernel)])

    for ids, values, _ in gradients():
        arguments = tf.constant(ids), tf.constant(values)
        strategy.run(step, args=arguments) if strategy else step(*arguments)
    return placement_of(layer.kernel).read(layer.kernel).numpy().tobytes()


@pytest.mark.parametrize("option", sorted(COMMON & set(OPTIONS)))
def test_every_option_of_a_table_in_shards_or_in_a_file_equals_that_in_memory(option, tmp_path):
    want = table_of("memory", lambda: made(optimizers.Adagrad, option), tmp_path)
    for place in ("sharded", "tiered"):
        wrap = "loss scale" if place == "sharded" else "composite of scales"

        def make(wrap=wrap):
            return WRAPPERS[wrap](made(optimizers.Adagrad, option))

        if option in REFUSED[place]:
            with pytest.raises((ValueError, tf.errors.UnimplementedError)):
                table_of(place, make, tmp_path)
        else:
            assert table_of(place, make, tmp_path) == want, (place, wrap)
