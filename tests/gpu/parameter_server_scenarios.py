"""Parameter servers and a worker that have GPUs: tables stay on the hosts of the servers.

The process connects to its own servers and stays connected, so these scenarios have a process of
their own.
"""

import tensorflow as tf

from tests.distribute.parameter_server.model import BATCH, batches, builder, whole_batches
from tests.gpu.scenario import assert_on, copied_bytes, has_gpu, scenario, weights_of
from twml_ops import optimizers
from twml_ops.distribute.parameter_server import Cluster
from twml_ops.distribute.parameter_server.cluster import start_server

STEPS, UNITS = 10, 8


def batches_on_host(context):
    with tf.device("/job:worker/task:0/device:CPU:0"):
        return batches(context)


@scenario
def a_worker_with_a_gpu_trains_tables_on_the_hosts_of_the_servers():
    if not has_gpu():
        model = builder()
        model.compile(optimizers.Adagrad(0.1), "binary_crossentropy", jit_compile=False)
        every = whole_batches()
        for x, y in [*(every * 2)[:STEPS], every[0]]:  # each call of fit begins with the first
            model.train_on_batch(x, y)
        return weights_of(*model.weights)
    # The import reserves ports.
    from tests.distribute.parameter_server.trainers import SERVERS, WORKER, trainer

    servers = [start_server(Cluster(SERVERS, job="ps", index=i)) for i in range(2)]
    Cluster(SERVERS[:2], [WORKER]).connect(120)
    run = trainer(optimizers.Adagrad(0.1), partition_axis="row")
    run.fit(batches_on_host, STEPS)
    (table,) = run.state.tables
    for variable in (*table.shards, *(slot for slots in table.slots for slot in slots)):
        device = tf.DeviceSpec.from_string(variable.device)
        assert (device.job, device.device_type) == ("ps", "CPU"), variable.device
    assert_on("GPU", *run.model.layers[-1].trainable_variables)
    to_device, to_host, largest = copied_bytes(lambda: run.fit(batches_on_host, STEPS + 1))
    activations = BATCH * UNITS * 4
    assert max(to_device, to_host) <= 2 * activations + 4096, (to_device, to_host)
    assert largest <= activations, largest
    exported = weights_of(*run.export().weights)
    assert len(servers) == 2
    return exported
