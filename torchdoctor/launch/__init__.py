"""Starting a program so that nothing of it stays: its environment, its sandbox, its end.

In: a `Workload`, a plan for the probe.
Out: a finished launch: exit code, output, the channel folder.
May import: schema, machine.
"""
