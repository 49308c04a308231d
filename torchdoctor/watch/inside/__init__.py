"""The part of `watch` that runs inside the user's process: standard library, probe and steps only."""
