"""One file per ceiling: what fixing a branch of the tree could give at most, tried for real.

A ceiling takes a cost away without keeping the training meaningful, in blocks of a launch that is
thrown away. It is never recommended. A module says `BRANCH`; `settings(recording)`, None where
there is nothing to try; and `apply(torch, settings, program)`, as a fix that is switched.
"""
