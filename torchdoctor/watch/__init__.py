"""Stays beside a real training to its end: records it, tells what changes, and reports on it.

In: the user's command, as typed. Out: `torchdoctor-runs/<time>/watch/`, alerts, a live view, an end
report. `inside` is loaded by path into the user's process and needs the standard library and the
probe alone; `layout` describes the folder; `recording` reads it.

May import: words, probe, machine, launch, observe, reports, facts, advice.
"""
