"""What a report looks like: terminal, page, Markdown, SARIF, TensorBoard. Renders, never computes.

In: a report.
Out: text and files.
May import: schema, queries, machine, probe, trace, advice, observe, bench, launch.
"""
