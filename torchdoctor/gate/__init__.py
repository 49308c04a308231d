"""Is this version slower than that one? Two versions measured side by side, and a rule that does
not cry wolf. Pure but for `versions.py` (git), and `launches.py` and `gate_run.py` (launches).

May import: words, facts, machine, launch, observe, pairs, trials, reports.
"""
