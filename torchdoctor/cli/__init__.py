"""The commands, one file each: arguments in, text out. They decide nothing.

May import: schema, trace, launch, advice, edits, reports, runs, gate, compare, watch, clusters,
machine.
"""
