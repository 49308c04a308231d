"""The stories of `run` and of `diagnose`: from a workload or traces to a report.

In: a `Workload` or trace files, settings.
Out: a `Report`.
May import: words, facts, machine, edits, trace, launch, advice, observe, pairs, trials, reports, clusters.
"""  # noqa: E501
