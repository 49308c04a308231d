"""One file for each question of the decision tree; the folder is the registry.

In: a `Recording`. Out: `Finding`s, made of the `Symptom`s that a file's `_examine` yields.
A file is its page (the docstring), its threshold, its logic, and `CHECK`, a `CheckSpec` with
example recordings that one shared test runs. The check's id is the file's name.

May import: schema, queries.
"""
