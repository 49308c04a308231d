"""Renderers: each module has `render(report) -> str`. They choose words and layout, no figures."""
