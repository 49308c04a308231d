"""Stays beside a real training to its end: records it, tells what changes, and reports on it.

In: the user's command, as typed. Out: `torchdoctor-runs/<time>/watch/`, alerts, a live view, an end
report. `inside` is loaded by path into the user's process and needs the standard library, the probe
and `steps` alone; `layout` describes the folder; `recording` reads it.

May import: schema, probe, steps, machine, launch, observe, reports, queries, advice.
"""
