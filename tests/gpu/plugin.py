"""`pytest -p tests.gpu.plugin`: runs other tests with the simulated GPU.

`make test-fake-gpu` runs the tests of layers, optimizers and exports in this way. Tests of what
the simulated GPU has no kernels for fail here, and are listed in OTHER.
"""

import tests.conftest  # noqa: F401  (the logical CPUs come first)
from tests.gpu.scenario import load_gpu
from tests.gpu.test_gpu_hosts import fake_gpu

load_gpu(str(fake_gpu()))
