"""One file for each remedy; the folder is the registry (`torchdoctor.advice.catalogue` reads it).

The files are loaded by their path inside the user's program: at module level they import the
standard library alone.

May import: words, probe, facts, checks, edits.
"""
