"""Optimizers of tables on a TPU: what becomes of each option, and the formulas."""

import inspect

import numpy as np
import pytest
import tensorflow as tf

from twml_ops import layers, optimizers, tpu
from twml_ops._keras import KERAS_3
from twml_ops.layers import SparseTable
from twml_ops.ops._tape import tf_variable
from twml_ops.optimizers import OptimizerOptions
from twml_ops.tpu.optimizers import check_sparse_core_options

EMBEDDING = tf.tpu.experimental.embedding
MAPPED, REFUSED, UNUSED = "mapped", "refused", "unused"
COMMON = {
    "name": ("other", UNUSED),
    "learning_rate": (0.3, MAPPED),
    "clipvalue": (1.5, MAPPED),
    "clipnorm": (1.5, REFUSED),
    "global_clipnorm": (1.5, REFUSED),
    "weight_decay": (0.1, REFUSED),
    "concurrency": ("hogwild", REFUSED),
    "rounding_seed": (7, UNUSED),  # of bfloat16 tables, which are refused
    "use_ema": (True, REFUSED),
    "ema_momentum": (0.5, UNUSED),  # without use_ema
    "ema_overwrite_frequency": (3, UNUSED),
    "loss_scale_factor": (2.0, REFUSED),
    "gradient_accumulation_steps": (2, REFUSED),
    "jit_compile": (False, UNUSED),  # True is refused by every optimizer
    "is_legacy_optimizer": (False, UNUSED),
}
OWN = {
    "SGD": {},
    "Momentum": {"momentum": (0.5, MAPPED), "nesterov": (True, MAPPED)},
    "Adagrad": {"initial_accumulator_value": (0.5, MAPPED), "epsilon": (0.5, MAPPED)},
    "LazyAdam": {"beta_1": (0.5, MAPPED), "beta_2": (0.5, MAPPED), "epsilon": (0.5, MAPPED)},
    "Ftrl": {
        "learning_rate_power": (-0.3, MAPPED),
        "initial_accumulator_value": (0.5, MAPPED),
        "l1_regularization_strength": (0.1, MAPPED),
        "l2_regularization_strength": (0.1, MAPPED),
        "l2_shrinkage_regularization_strength": (0.1, REFUSED),
        "beta": (0.1, MAPPED),
    },
}
ONLY_KERAS_3 = ("loss_scale_factor", "gradient_accumulation_steps")


def settings_of(made):
    """The attributes of an optimizer of TensorFlow, and the learning rate of the current step."""
    return {
        k: float(v()) if k == "learning_rate" and callable(v) else v for k, v in vars(made).items()
    }


@pytest.mark.parametrize("kind", OWN)
def test_every_option_is_mapped_or_refused(kind):
    make = getattr(optimizers, kind)
    options = COMMON | OWN[kind]
    declared = {*inspect.signature(make).parameters, *OptimizerOptions.__annotations__} - {
        "options"
    }
    assert declared == {*options}
    plain = settings_of(tpu.table_optimizer(make()))
    for option, (value, fate) in options.items():
        if option in ONLY_KERAS_3 and not KERAS_3:
            continue
        other = make(**{option: value})
        if fate == REFUSED:
            with pytest.raises(ValueError, match=option):
                tpu.table_optimizer(other)
        else:
            changed = settings_of(tpu.table_optimizer(other)) != plain
            assert changed == (fate == MAPPED), option


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda: optimizers.RowWiseAdagrad(0.1), "RowWiseAdagrad.*not for each row; use Adagrad"),
        (lambda: tf.keras.optimizers.Adam(0.1), "got .*Adam"),
        (
            lambda: optimizers.Momentum(optimizers.LinearScalingWarmup(0.1, 1024, 256, 10)),
            "learning_rate of Momentum must be a number",
        ),
        (lambda: optimizers.Ftrl(0.1, initial_accumulator_value=0.0), "must be positive"),
        (lambda: optimizers.CompositeOptimizer(optimizers.SGD(), {}), "feature_configs takes it"),
        (lambda: optimizers.LossScaleOptimizer(optimizers.SGD()), "keep its scale of the loss"),
    ],
)
def test_optimizers_without_a_counterpart_are_rejected(optimizer, message):
    with pytest.raises(ValueError, match=message):
        tpu.table_optimizer(optimizer())


def test_the_rate_of_adam_and_of_schedules_follows_the_step():
    adam = optimizers.LazyAdam(0.5, beta_1=0.9, beta_2=0.99)
    rate = tpu.table_optimizer(adam).learning_rate
    np.testing.assert_allclose(rate(), 0.5 * np.sqrt(1 - 0.99) / (1 - 0.9), rtol=1e-5)
    schedule = optimizers.LinearScalingWarmup(0.1, 1024, 256, warmup_steps=10)
    sgd = optimizers.SGD(schedule)
    rate = tpu.table_optimizer(sgd).learning_rate
    np.testing.assert_allclose(rate(), 0.1, rtol=1e-6)
    sgd.iterations.assign(10)
    np.testing.assert_allclose(rate(), 0.4, rtol=1e-6)


def test_sparse_cores_ignore_clipping_which_is_rejected():
    made, _ = model_of({"sgd": optimizers.SGD(0.1, clipvalue=1.0)})
    with pytest.raises(ValueError, match=r"clipvalue is ignored.*got 1.0 for table 'groups/sgd'"):
        check_sparse_core_options(tpu.feature_configs(made))
    made, _ = model_of({"sgd": optimizers.SGD(0.1)})
    check_sparse_core_options(tpu.feature_configs(made))


PARTS = {
    "sgd": lambda: optimizers.SGD(optimizers.LinearScalingWarmup(0.1, 1024, 256, 5)),
    "momentum": lambda: optimizers.Momentum(0.1),
    "nesterov": lambda: optimizers.Momentum(0.1, nesterov=True),
    "adagrad": lambda: optimizers.Adagrad(0.1, initial_accumulator_value=0.0, epsilon=0.01),
    "adam": lambda: optimizers.LazyAdam(0.1, beta_1=0.8, epsilon=1e-3),
    "ftrl": lambda: optimizers.Ftrl(
        0.1, l1_regularization_strength=0.02, l2_regularization_strength=0.1, beta=0.5
    ),
}
N, D, B = 12, 3, 8


def model_of(parts):
    """A model with a table for each part of a `CompositeOptimizer`, and its batches."""
    tf.keras.utils.set_random_seed(2)
    symbolic = {name: tf.keras.Input([4], dtype="int64", name=name) for name in parts}
    tables = {name: SparseTable(N, D) for name in parts}
    found = layers.GroupedSparseLinear(tables, name="groups")(symbolic)
    hidden = tf.keras.layers.Concatenate()([found[name] for name in parts])
    made = tf.keras.Model(symbolic, tf.keras.layers.Dense(1, "tanh", name="head")(hidden))
    by_table = {f"groups/{name}": optimizer for name, optimizer in parts.items()}
    dense = tf.keras.optimizers.Adam(0.01)
    made.compile(optimizers.CompositeOptimizer(dense, by_table), "mse", jit_compile=False)
    rng = np.random.default_rng(3)
    batches = [{name: tf.constant(rng.integers(-1, N, (B, 4))) for name in parts} for _ in range(6)]
    return made, batches


def test_each_table_has_its_part_of_a_composite_optimizer():
    parts = {name: make() for name, make in PARTS.items()}
    made, _ = model_of(parts)
    configs = tpu.feature_configs(made)
    kinds = {name.rpartition("/")[2]: type(c.table.optimizer) for name, c in configs.items()}
    momentum = EMBEDDING.AdagradMomentum
    assert kinds == {
        "sgd": EMBEDDING.SGD,
        "momentum": momentum,
        "nesterov": momentum,
        "adagrad": EMBEDDING.Adagrad,
        "adam": EMBEDDING.Adam,
        "ftrl": EMBEDDING.FTRL,
    }
    # The composite optimizer counts the steps: its parts see no gradients of tables.
    made.optimizer.iterations.assign(5)
    np.testing.assert_allclose(
        configs["groups/sgd"].table.optimizer.learning_rate(), 0.4, rtol=1e-6
    )
    adam = configs["groups/adam"].table.optimizer.learning_rate()
    np.testing.assert_allclose(adam, 0.1 * np.sqrt(1 - 0.999**6) / (1 - 0.8**6), rtol=1e-4)


def test_a_part_that_updates_no_table_may_be_any_optimizer():
    made, _ = model_of({"sgd": optimizers.SGD(0.1)})
    assert {*tpu.feature_configs(made)} == {"groups/sgd"}
    made.compile(
        optimizers.CompositeOptimizer(tf.keras.optimizers.Adam(), {"head": optimizers.SGD()})
    )
    with pytest.raises(ValueError, match=r"got .*Adam"):
        tpu.feature_configs(made)
    made.compile()
    made.optimizer = None
    with pytest.raises(ValueError, match=r"got .*NoneType"):
        tpu.feature_configs(made)


def update_on_a_tpu(made, rate, w, slots, g):
    """The rows w and their slots after a step of an optimizer of TensorFlow.

    The formulas of the kernels in tensorflow/core/tpu/kernels/sparse_core_xla_ops.cc, which only
    TPUs with SparseCores have.
    """
    f = np.float32
    if isinstance(made, EMBEDDING.SGD):
        return w - rate * g, {}
    if isinstance(made, EMBEDDING.Adagrad):
        a = slots["accumulators"] + g * g
        return w - rate * g / np.sqrt(a), {"accumulators": a}
    if isinstance(made, EMBEDDING.AdagradMomentum):
        decay, share = (1, 1) if made.beta2 == 1 else (f(made.beta2), f(1 - made.beta2))
        a = decay * slots["accumulators"] + share * g * g
        scaled = g * (a + f(made.epsilon)) ** f(-1 / made.exponent)
        m = f(made.momentum) * slots["momenta"] + scaled
        step = f(made.momentum) * m + scaled if made.use_nesterov else m
        return w - rate * step, {"accumulators": a, "momenta": m}
    if isinstance(made, EMBEDDING.Adam):
        assert not made.sum_inside_sqrt
        m = f(made.beta_1) * slots["momenta"] + f(1 - made.beta_1) * g
        v = f(made.beta_2) * slots["velocities"] + f(1 - made.beta_2) * g * g
        step = rate * m / (np.sqrt(v) + f(made.epsilon))
        return w - step, {"momenta": m, "velocities": v}
    assert isinstance(made, EMBEDDING.FTRL)
    assert not made.multiply_linear_by_learning_rate
    power, l1 = f(-made.learning_rate_power), f(made.l1_regularization_strength)
    a = slots["accumulators"] + g * g
    z = slots["linears"] + g - (a**power - slots["accumulators"] ** power) * w / rate
    divisor = (a**power + f(made.beta)) / rate + 2 * f(made.l2_regularization_strength)
    return (np.clip(z, -l1, l1) - z) / divisor, {"accumulators": a, "linears": z}


def apply_as_a_tpu(embedding, gradients):
    """Updates the tables of a `TPUEmbeddingForServing`, which has the slots of the optimizers."""
    for config in embedding.embedding_tables:
        variables, gradient = dict(embedding._variables[config.name]), gradients[config.name]
        table = variables.pop("parameters")
        ids = np.unique(gradient.indices)
        rows = np.stack([gradient.values.numpy()[gradient.indices == i].sum(0) for i in ids])
        made = config.optimizer
        rate = made.learning_rate() if callable(made.learning_rate) else made.learning_rate
        slots = {name: slot.numpy()[ids] for name, slot in variables.items()}
        new, after = update_on_a_tpu(made, np.float32(rate), table.numpy()[ids], slots, rows)
        assert {*after} == {*slots}
        for variable, value in [(table, new), *((variables[n], v) for n, v in after.items())]:
            variable.assign(tf.tensor_scatter_nd_update(variable, ids[:, np.newaxis], value))


def test_training_with_the_formulas_of_tpus_equals_the_composite_optimizer():
    labels = tf.constant(np.random.default_rng(4).normal(size=(B, 1)), tf.float32)

    def loss_of(model, batch):
        return tf.reduce_mean((model(batch, training=True) - labels) ** 2)

    on_cpu, batches = model_of({name: make() for name, make in PARTS.items()})
    begin = {t.name: t.variable.numpy() for _, t in tpu.table_layers.lookup_tables(on_cpu)}
    twin, _ = model_of({name: make() for name, make in PARTS.items()})
    with tpu.external_tables():
        without, _ = model_of({name: make() for name, make in PARTS.items()})
    tpu.copy_dense_weights(on_cpu, without)
    for batch in batches:
        with tf.GradientTape() as tape:
            loss = loss_of(on_cpu, batch)
        variables = on_cpu.trainable_variables
        gradients = tape.gradient(loss, [tf_variable(v) for v in variables])
        on_cpu.optimizer.apply_gradients(zip(gradients, variables, strict=True))

    optimizer = without.optimizer
    optimizer.build(without.trainable_variables)
    configs = tpu.feature_configs(twin, optimizer)
    embedding = tpu.create_embedding(configs)
    dense = [v for v in without.trainable_variables if v.shape[0]]
    for batch in batches:
        with tf.GradientTape(persistent=True) as tape:
            inputs = tpu.lookup_inputs(twin, {"groups": batch})
            activations = tpu.host_lookup(embedding, inputs, configs)
            with tpu.use_lookups(activations):
                loss = loss_of(without, batch)
        tables = {config.name: table for config, table in embedding.embedding_tables.items()}
        apply_as_a_tpu(embedding, tape.gradient(loss, tables))
        by_dense = tape.gradient(loss, [tf_variable(v) for v in dense])
        optimizer.apply_gradients(zip(by_dense, dense, strict=True))

    tpu.copy_tables_from_embedding(twin, embedding)
    tpu.copy_dense_weights(without, twin)
    for ours, theirs in zip(on_cpu.weights, twin.weights, strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-5)
    for _, table in tpu.table_layers.lookup_tables(twin):
        assert np.any(table.variable.numpy() != begin[table.name])
