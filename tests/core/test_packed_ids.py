import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twml_ops import core


@given(st.data())
def test_ids_come_back_in_their_order_with_as_few_bits_as_the_largest_needs(data):
    input_dim = data.draw(st.integers(1, 2**62))
    ids = np.array(data.draw(st.lists(st.integers(0, input_dim - 1), max_size=40)), np.int64)
    packed = core.pack_ids(ids, input_dim=input_dim)
    np.testing.assert_array_equal(core.unpack_ids(packed), ids)
    assert packed.size <= 80 + len(ids) * input_dim.bit_length() // 8


@pytest.mark.parametrize("bad", [[5], [-1], [0, 4, 5]])
def test_ids_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match=r"ids\[\d\] = -?\d"):
        core.pack_ids(np.array(bad), input_dim=5)


def test_other_bytes_are_refused():
    packed = core.pack_ids(np.arange(5), input_dim=5)
    for bad in (packed[:-8], packed[:0], np.zeros_like(packed)):
        with pytest.raises(ValueError, match="packed"):
            core.unpack_ids(bad)
