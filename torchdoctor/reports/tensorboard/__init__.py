"""A report as a TensorBoard log: event files and traces in a log folder."""
