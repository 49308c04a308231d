"""Values in a command line that nobody else may read: tokens, keys, passwords.

What is stored or shown of a command has `***` in their place; a launch gets the words themselves.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

HIDDEN = "***"
_LEAST_LENGTH = 6  # of a value that is looked for in other text: a shorter one is in any word
# Parts of a name, between dashes, underscores and dots.
_SECRET = re.compile(
    r"^(auth)?tokens?$|^(api|access|private|secret|auth|account|wandb|ssh|hf|openai)?keys?$"
    r"|secret|passw|passphrase|^pwd$|credential"
)
_NAME = re.compile(r"^-{0,2}\+{0,2}([A-Za-z][\w.-]*)$")
_PLAIN = re.compile(r"^([-+]?[\d.]+(e[-+]?\d+)?|true|false|yes|no|none|null|)$", re.IGNORECASE)
_ADDRESS = re.compile(r"^(\w[\w+.-]*://[^/@:\s]*:)([^/@\s]+)(@.*)$", re.DOTALL)


def values(words: Sequence[str]) -> list[str]:
    """Return the secret values of a command's words, each once, in their order."""
    return list(dict.fromkeys(value for _, value in _found(words)))


def masked(words: Sequence[str]) -> list[str]:
    """Return the words with `***` in place of their secret values."""
    shown = list(words)
    for at, value in _found(words):
        before, _, after = shown[at].rpartition(value)
        shown[at] = before + HIDDEN + after
    return shown


def findable(secrets: Iterable[str]) -> list[str]:
    """Return the values that can be looked for in other text, the longest first."""
    long_enough = [value for value in secrets if len(value) >= _LEAST_LENGTH]
    return sorted(long_enough, key=len, reverse=True)


def without(text: str, secrets: Iterable[str]) -> str:
    """Return a text with `***` in place of secret values; those that are too short stay."""
    for value in findable(secrets):
        text = text.replace(value, HIDDEN)
    return text


def hide_in_bytes(data: bytes, secrets: Iterable[str]) -> bytes:
    """Return what a program wrote with `***` in place of secret values, as `without`."""
    for value in findable(secrets):
        data = data.replace(value.encode(), HIDDEN.encode())
    return data


def _found(words: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield (number of the word, secret value in it)."""
    named = False
    for at, word in enumerate(words):
        is_value, named = named and not word.startswith("--"), False
        address = _ADDRESS.match(word)
        name, equals, value = word.partition("=")
        if is_value:
            if not _PLAIN.match(word):
                yield at, word
        elif address:
            yield at, address[2]
        elif equals:
            if _is_secret(name) and not _PLAIN.match(value):
                yield at, value
            elif inside := _ADDRESS.match(value):
                yield at, inside[2]
        else:
            named = word.startswith("-") and _is_secret(word)


def _is_secret(name: str) -> bool:
    match = _NAME.match(name)
    if match is None:
        return False
    parts = re.split(r"[-_.]", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", match[1]).lower())
    return any(_SECRET.search(part) for part in parts)
