"""The part that runs inside the user's process: standard library only, loaded by path.

`sitecustomize` waits for `import torch`; `attach` then installs the hooks and applies fixes. There
the modules live under the private name `_torchdoctor_probe`: nothing of the tool is imported.

May import: no other room.
"""
