"""Secret values of a command line, as rooms outside the user's process hide them too."""

from torchdoctor.probe.secret_values import LEAST_LENGTH, hide_in_bytes, masked, values, without

__all__ = ["LEAST_LENGTH", "hide_in_bytes", "masked", "values", "without"]
