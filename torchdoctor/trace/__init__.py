"""Kineto traces: files -> columns -> timeline, waits, replay. No torch.

In: trace files.
Out: a `TraceSummary`, shares of the step, predictions.
May import: words, facts.
"""
