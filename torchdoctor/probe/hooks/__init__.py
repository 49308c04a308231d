"""The wrappers around torch and Python by which the probe sees a step happen."""
