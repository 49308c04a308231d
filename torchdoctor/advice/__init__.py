"""From findings to what to try: the catalogue, the decision tree, candidates, the source patch.

In: a `Recording`, the check and fix files.
Out: a `Diagnosis`, `Candidate`s, a patch.
May import: schema, queries, edits.
"""
