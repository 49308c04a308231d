"""Facts that the probe reads from the running program, once or now and then."""
