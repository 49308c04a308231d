"""The fallback sandbox: writers of Python and torch go to a scratch folder."""
