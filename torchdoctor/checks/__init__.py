"""One file per question of the decision tree; the folder is the registry.

A check is a module: its docstring is its page (What it means / What to do, where no fix treats it
/ How it is measured / Not to be confused with); `UNDER` its branch; `THRESHOLD`, `THRESHOLD_UNIT`
(a share's begins with "%") and `THRESHOLD_SOURCE`; `look(recording)`, pure; `FIRES` and `QUIET`,
partial recordings that one shared test runs. A branch check also has `QUESTION`, `METRIC` and
`measure(recording)`: it is a question of the tree's path.

May import: words, facts.
"""
