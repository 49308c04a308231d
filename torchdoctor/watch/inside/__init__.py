"""The part of `watch` inside the user's process: needs standard library, probe and steps alone."""
