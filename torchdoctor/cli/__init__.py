"""The commands, one file each: arguments in, text out. They decide nothing.

May import: words, trace, launch, advice, edits, reports, checkup, gate, compare, watch, clusters,
machine.
"""
