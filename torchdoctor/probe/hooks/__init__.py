"""What the probe wraps in torch and Python so that it sees a step happen."""
