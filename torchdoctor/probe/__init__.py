"""The part that runs inside the user's process: standard library only, loaded by path.

`sitecustomize` waits for `import torch`; `attach` then installs the hooks and applies fixes. In
the user's process the modules live under the private package name `_torchdoctor_probe`, so that
nothing of the tool itself is ever imported there. The tool's own process imports `step_log` (the
event codes) from here and nothing else.

May import: no other room.
"""
