"""TensorFlow is imported without collections, and what its import makes is never collected."""

import subprocess
import sys

CODE = """
import gc, sys
sys.path[:0] = [{root!r}, {folder!r}]
from twml_ops import _garbage_collection
{before}
_garbage_collection.spare_imports()
_garbage_collection.spare_imports()
try:
    import tensorflow
    print(tensorflow.ENABLED)
except ImportError as e:
    print(e)
print(gc.isenabled(), gc.get_freeze_count() > 0, "tensorflow" in sys.modules)
"""


def run(tmp_path, body, before=""):
    (tmp_path / "tensorflow.py").write_text(body)
    code = CODE.format(root=sys.path[0], folder=str(tmp_path), before=before)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


ENABLED = "import gc; ENABLED = gc.isenabled()"


def test_the_import_of_tensorflow_is_not_collected(tmp_path):
    assert run(tmp_path, ENABLED) == ["False", "True True True"]


def test_a_process_without_collections_stays_so(tmp_path):
    assert run(tmp_path, ENABLED, before="gc.disable()") == ["False", "False False True"]


def test_collections_go_on_after_an_import_that_failed(tmp_path):
    assert run(tmp_path, "raise ImportError('broken')") == ["broken", "True False False"]
