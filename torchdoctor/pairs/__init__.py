"""The engine that measures: launches in turns, side by side and switched, as timings.

In: fixes, a plan of blocks.
Out: timings of blocks.
May import: words, probe, machine, launch, observe.
"""
