"""One file per ceiling: what fixing a branch of the tree could give at most, tried for real.

A ceiling takes a cost away without keeping the training meaningful, in blocks of a launch that is
thrown away. When it is switched off, the training's state is put back. It is never recommended.
A file ends with `ABLATION = AblationSpec(...)`.
"""
