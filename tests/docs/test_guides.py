"""Every Python block of the guides runs, in a folder of its own, where what it needs is there."""

import importlib.util
import re
from pathlib import Path

import pytest
import tensorflow as tf

from tests.pairwise import ONE_TF
from twml_ops._keras import KERAS_3

DOCS = Path(__file__).resolve().parents[2] / "docs"
NEEDS = {
    "estimator": hasattr(tf, "estimator"),
    "peers": importlib.util.find_spec("mpi4py") is not None,
    "tfrs": not KERAS_3 and importlib.util.find_spec("tensorflow_recommenders") is not None,
}
# Their blocks call what is not Keras, or what tests of both TensorFlows train.
ON_ONE = (
    "distribute",
    "large_batches",
    "parameter_server",
    "published",
    "python",
    "search",
    "serving",
)
BLOCKS = [
    pytest.param(code, id=f"{guide.stem}-{i}", marks=[ONE_TF] * (guide.stem in ON_ONE))
    for guide in sorted(DOCS.glob("*.md"))
    for i, code in enumerate(
        re.findall(r"^```python\n(.*?)^```", guide.read_text(encoding="utf-8"), re.S | re.M)
    )
    if NEEDS.get(guide.stem, True)
]


@pytest.mark.parametrize("code", BLOCKS)
def test_every_python_block_of_the_guides_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(code, {})
