"""`pytest -p tests.gpu.plugin`: runs other tests with the simulated GPU; `make test-fake-gpu`."""

import tests.conftest  # noqa: F401  (the logical CPUs come first)
from tests.gpu.scenario import load_gpu
from tests.gpu.test_gpu_hosts import fake_gpu

load_gpu(str(fake_gpu()))
