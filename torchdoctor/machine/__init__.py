"""This machine beside the program: sensors, storage, NVML, processes, CPUs that may be used.

In: a process tree, paths.
Out: samples as columns, an `Environment`.
May import: schema, probe.
"""
