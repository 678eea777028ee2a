"""Each exception is printed as one line that names the cause."""

import pytest
import tensorflow as tf

from twml_ops.cli.errors import message_of, report
from twml_ops.training.errors import UserError

GRAPH = """Graph execution error:

Detected at node Twml>SparseLinear defined at (most recent call last):
  File "/home/me/train.py", line 3, in <module>

  File "/lib/layer.py", line 129, in call

Node: 'Twml>SparseLinear'
ids[12] = 99 is out of range [0, 64)
\t [[{{node Twml>SparseLinear}}]] [Op:__inference_one_step_on_iterator_1]"""


REMOTE = """Graph execution error:

2 root error(s) found.
  (0) CANCELLED:  the step that waits for a message was cancelled
\t [[{{node Twml>ReceiveMessage_10}}]]
  (1) INVALID_ARGUMENT:   the 247 ids must fit into the cache
\t [[{{node Twml>TieredSparseLinear}}]]
Additional GRPC error information from remote target /job:ps/replica:0/task:0/device:CPU:0:
:UNKNOWN:Error received from peer  {grpc_message:" the 247 ids must fit", grpc_status:3}
0 successful operations."""

NO_FILE = FileNotFoundError(2, "No such file", "d.tsv")
READER = (
    "{{function_node __wrapped__X}} ValueError: bad row\n"
    'Traceback (most recent call last):\n  File "a.py", line 1'
)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (UserError("a\n  b"), "a b"),
        (ValueError("x is wrong"), "x is wrong"),
        (NO_FILE, "d.tsv: No such file"),
        (EOFError("ended early"), "ended early"),
        (tf.errors.InvalidArgumentError(None, None, GRAPH), "ids[12] = 99 is out of range [0, 64)"),
        (tf.errors.InvalidArgumentError(None, None, REMOTE), "the 247 ids must fit into the cache"),
        (tf.errors.UnknownError(None, None, READER), "bad row"),
    ],
)
def test_line(error, line):
    assert message_of(error) == line


def test_an_unexpected_exception_is_reported_as_an_internal_error():
    assert message_of(KeyError("k")).startswith("internal error")


@pytest.mark.parametrize(
    ("error", "code"), [(UserError("x"), 1), (KeyboardInterrupt(), 130), (ValueError("a\nb"), 1)]
)
def test_report_prints_one_line_and_exits(capsys, error, code):
    with pytest.raises(SystemExit) as exit_:
        report(error)
    assert exit_.value.code == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("twml-ops: ")
    assert err.count("\n") == 1
