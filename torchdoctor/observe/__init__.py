"""The untouched program, observed: events -> steps, phases, shares, the profiled window.

In: the channel of a launch.
Out: an `Observation`.
May import: schema, probe, steps, queries, trace, launch, edits.
"""
