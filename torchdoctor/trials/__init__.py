"""The search: which candidate to measure next, what the measurements show, when to stop.

In: candidates, a budget, launches.
Out: trials with verdicts, a recommendation.
May import: schema, queries, machine, launch, advice, observe, bench.
"""
