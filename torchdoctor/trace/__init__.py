"""Kineto traces: files -> columns -> timeline, waits, replay. No torch.

In: trace files.
Out: `TraceStatistics`, with the shares of the step and predictions.
May import: schema, queries.
"""
