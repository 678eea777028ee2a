"""What the CUDA library promises, for pytest, the search for defects and tools/gpu_proof.

The laws need NumPy alone. They are in table_laws.py, failure_laws.py and feature_laws.py, which are
imported here so that `laws` has all of them.
"""

from tests.cuda import failure_laws, feature_laws, table_laws
from tests.cuda.law import ALL, BATTERY, QUICK, Lab, Law, laws

PAIRS = table_laws.PAIRS

__all__ = ["ALL", "BATTERY", "PAIRS", "QUICK", "Lab", "Law", "failure_laws", "feature_laws", "laws"]
