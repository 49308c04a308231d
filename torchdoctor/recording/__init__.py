"""Beside the user's process: launches, sensors, events and traces -> `Recording`."""
