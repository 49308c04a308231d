"""One file per ceiling: what fixing a branch of the tree could give at most, tried for real.

A ceiling takes a cost away without keeping the training meaningful, in blocks of a launch that is
thrown away; what it did to the training's state is undone when it is switched off. It is never
recommended. A module says

- `branch(recording)`: of the tree;
- `WHOLE`: whether it takes all of that branch's cost away, or `REMOVES` names a part of it;
  `whole(recording)` goes before it where that is not always so;
- `BY_OWN_LOADER`: without that cost the program's own loader sets the pace;
- `REMOVES`: what it takes away, as in "without ...";
- `share(recording)`: of the step, 0 to 1, that this takes by what was observed; None: not known;
- `settings(recording)`: None where there is nothing to try;
- `apply(torch, settings, program)`: as a fix that is switched.
"""
