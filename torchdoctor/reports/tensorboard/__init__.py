"""A report as a TensorBoard log: event files, images and traces in a log folder."""
