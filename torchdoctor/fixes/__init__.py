"""One file for each remedy; the folder is the registry (`torchdoctor.advice.catalogue` reads it).

A file ends with `FIX = FixSpec(...)`. It is executed inside the user's program too, where its
`apply` is called: there its imports of torchdoctor are answered with names that do nothing
(`probe.fixkit.program`), and torch is imported inside functions alone.

May import: schema, probe, queries, checks, edits.
"""
