"""What must be so before any test module is imported."""

import os
from pathlib import Path

# Two processes run tests, and beside them those that tests start: the tensors are small.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Triton reads this where it defines a kernel, its own ones included: so before its first import.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"
