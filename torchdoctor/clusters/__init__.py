"""Pairs on other machines: nodes that Slurm or Ray starts, each with both sides of its pairs.

In: pairs that are to be measured, and what the command line says of a cluster.
Out: how their launches ended, or why a pair was lost. Imported only where it is asked for.
May import: schema, machine, trace, launch, observe, bench, trials, reports.
"""
