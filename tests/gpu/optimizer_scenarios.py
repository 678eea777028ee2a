"""Training steps of every optimizer: tables are updated on the host, dense weights on the GPU."""

import numpy as np
import tensorflow as tf

from tests.gpu.scenario import (
    B,
    D,
    N,
    Net,
    arrays,
    assert_on,
    batch,
    copied_bytes,
    counts_copies,
    scenario,
    slots_of,
    step_of,
    weights_of,
)
from twml_ops import _keras, layers, optimizers


def trains(make_optimizer, form="binary", **kwargs):
    """Trains a `Net` for three steps. The last one copies activations and their gradient only."""
    net, optimizer = Net(**kwargs), make_optimizer()
    inputs, labels = batch(form)
    assert net(inputs).shape == (B, 1)
    step = step_of(net, optimizer, lambda: net.trainable_variables)
    step(inputs, labels)
    step(inputs, labels)
    to_device, to_host, largest = copied_bytes(lambda: step(inputs, labels))
    kernels = net.table.kernels
    assert_on(
        "CPU", *kernels, *slots_of(optimizer, *[s for k in kernels for s in (k.shape, k.shape[:1])])
    )
    assert_on("GPU", net.table.bias, *net.dense.trainable_variables)
    assert_on("GPU", *slots_of(optimizer, (D,), (D, 1)))
    if counts_copies():
        activations = B * D * 4
        assert activations <= to_device <= activations + 1024, to_device
        assert activations <= to_host <= activations + 1024, to_host
        assert largest == activations, largest
    return weights_of(*net.trainable_variables)


@scenario
def sgd_trains():
    return trains(lambda: optimizers.SGD(0.1))


@scenario
def momentum_trains():
    return trains(lambda: optimizers.Momentum(0.1, nesterov=True), form="ragged")


@scenario
def adagrad_trains():
    return trains(lambda: optimizers.Adagrad(0.1, weight_decay=0.01), form="sparse")


@scenario
def rowwise_adagrad_trains_by_slices():
    return trains(lambda: optimizers.RowWiseAdagrad(0.1, clipvalue=0.01))


@scenario
def lazy_adam_trains():
    schedule = tf.keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    return trains(lambda: optimizers.LazyAdam(schedule), form="padded")


@scenario
def ftrl_trains_on_clipped_gradients():
    return trains(lambda: optimizers.Ftrl(0.1, global_clipnorm=0.5))


@scenario
def bfloat16_tables_train():
    return trains(lambda: optimizers.Adagrad(0.1, rounding_seed=3), kernel_dtype="bfloat16")


@scenario
def tables_partitioned_by_row_train():
    return trains(lambda: optimizers.Adagrad(0.1), num_partitions=3)


@scenario
def tables_partitioned_by_column_train():
    kwargs = {"num_partitions": 2, "partition_axis": "column"}
    return trains(lambda: optimizers.Adagrad(0.1), form="ragged", **kwargs)


@scenario
def sharded_tables_train_without_replicas():
    return trains(lambda: optimizers.Adagrad(0.1), placement="sharded")


@scenario
def accumulated_gradients_train():
    if not _keras.KERAS_3:
        return {}
    return trains(lambda: optimizers.Adagrad(0.1, gradient_accumulation_steps=2))


@scenario
def eager_steps_train():
    net, optimizer = Net(), optimizers.LazyAdam(0.1)
    inputs, labels = batch("ragged")
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((net(inputs) - labels) ** 2)
        variables = net.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
    assert_on("CPU", net.table.kernel, *slots_of(optimizer, (N, D)))
    return weights_of(*net.trainable_variables)


RULES = {
    "sgd": optimizers.SGD,
    "momentum": optimizers.Momentum,
    "adagrad": optimizers.Adagrad,
    "rowwise_adagrad": optimizers.RowWiseAdagrad,
    "lazy_adam": optimizers.LazyAdam,
    "ftrl": optimizers.Ftrl,
}


@scenario
def embeddings_on_the_gpu_are_trained_there():
    found = {}
    ids = tf.constant([3, 1, 3])
    for name, rule in RULES.items():
        embedding = tf.keras.layers.Embedding(10, 4)
        embedding.build(None)
        optimizer = rule(0.1)

        def call(ids, embedding=embedding):
            return tf.reduce_sum(embedding(ids), axis=1, keepdims=True)

        step = step_of(call, optimizer, lambda embedding=embedding: embedding.trainable_variables)
        for _ in range(2):
            step(ids, tf.ones([3, 1]))
        assert_on("GPU", embedding.embeddings, *slots_of(optimizer, (10, 4), (10,)))
        found[name] = np.array(embedding.embeddings)
    return found


@scenario
def bfloat16_weights_of_dense_layers_are_trained_on_the_gpu():
    dense = tf.keras.layers.Dense(3, dtype="bfloat16")
    optimizer = optimizers.Adagrad(0.1, rounding_seed=1)
    dense.build((None, 4))

    @tf.function
    def step(inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(dense(inputs))
        variables = dense.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    for _ in range(3):
        step(tf.constant([[1, 2, 3, 4], [0, 1, 0, 1]], tf.bfloat16))  # exact gradients
    assert_on("GPU", *dense.trainable_variables, *slots_of(optimizer, (4, 3), (3,)))
    return weights_of(*dense.trainable_variables)


@scenario
def a_graph_of_version_1_trains():
    if not hasattr(tf, "estimator"):
        return {}
    from twml_ops import estimator

    ids, _, labels = arrays()
    rng = np.random.default_rng(3)
    start = tf.keras.initializers.Constant(rng.normal(size=(N, D)).astype(np.float32))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        linear = layers.SparseLinear(D, N, kernel_initializer=start)
        dense = tf.keras.layers.Dense(1, kernel_initializer="ones")
        loss = tf.reduce_mean((dense(linear(tf.constant(ids))) - labels) ** 2)
        step = estimator.as_v1(optimizers.Adagrad(0.1)).minimize(loss)
        session.run(tf.compat.v1.global_variables_initializer())
        for _ in range(2):
            session.run(step)
        kernel, out = session.run([linear.kernel, dense.kernel])
        assert_on("CPU", linear.kernel)
    return {"kernel": kernel, "out": out}
