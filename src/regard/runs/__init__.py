"""Runs: starting them, using them, showing one.

Every command and every public function comes through here before PyTorch is
loaded, which is the last moment to say how its threads wait for one another:
asleep. Where they spin, any other program on the machine makes them wait for a
core that the waiting itself keeps busy, and a small model trains ten times slower.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
