"""Why something is not done in the user's process, as data: the report makes the sentence.

A reason is what `schema.Evidence` is made of: which fact it is, and the values of its template.
"""


def reason(fact, **values):
    """Return a reason; `values` are what JSON can hold."""
    return {"fact": fact, "values": values}


def raised(error):
    """Return what was raised as a reason."""
    return reason("raised", error=type(error).__name__, message=str(error))
