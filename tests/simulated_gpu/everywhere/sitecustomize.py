"""On PYTHONPATH, this gives every Python the simulated device, whatever program it runs."""

import simulated_gpu.attach  # noqa: F401
