"""Secret values of a command line, as rooms outside the user's process hide them too."""

from torchdoctor.probe.secret_values import findable, hide_in_bytes, masked, values, without

__all__ = ["findable", "hide_in_bytes", "masked", "values", "without"]
