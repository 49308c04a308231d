"""Is this version slower than that one? Two versions measured side by side, and a rule that does
not cry wolf. Pure but for `versions.py` (git), `session.py`, `gate_run.py` and `stored.py`.

May import: schema, queries, machine, launch, observe, bench, trials, reports, clusters.
"""
