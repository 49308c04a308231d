"""One file for each remedy; the folder is the registry (`torchdoctor.catalogue` reads it).

The files are loaded by their path inside the user's program: at module level they import the
standard library alone.
"""
