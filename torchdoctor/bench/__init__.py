"""The engine that measures: pairs of launches side by side or in turns, and switched arms.

In: arms as `LaunchSpec`, and how the program was observed.
Out: `Pair`s and `Block`s, or what became of them instead.
May import: schema, probe, machine, launch, observe.
"""
