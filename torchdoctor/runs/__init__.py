"""The stories of `run` and of `diagnose`: from a workload or traces to a report.

In: a `Workload` or trace files, settings.
Out: a `Report`.
May import: schema, queries, machine, edits, trace, launch, advice, observe, bench, trials,
clusters, reports.
"""
