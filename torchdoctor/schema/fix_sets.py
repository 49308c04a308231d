"""A set of fixes with their settings: one type from the candidate to the report."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

FixSettings = dict[str, Any]  # the values of one fix, by name


class FixSet(Mapping[str, FixSettings]):
    """Fixes by id, each once with its settings, in the order in which they are applied.

    Immutable. Two sets are equal if they hold the same fixes with the same settings, in any order.
    In JSON it is an object: `{"loader-workers": {"num_workers": 4}, "set-to-none": {}}`.
    """

    __slots__ = ("_settings",)

    def __init__(
        self, fixes: Mapping[str, FixSettings] | Iterable[tuple[str, FixSettings]] = ()
    ) -> None:
        pairs = fixes.items() if isinstance(fixes, Mapping) else fixes
        self._settings = {fix: dict(settings) for fix, settings in pairs}

    @classmethod
    def of(cls, fix: str, settings: FixSettings | None = None) -> "FixSet":
        """Return the set of one fix."""
        return cls({fix: settings or {}})

    def __getitem__(self, fix: str) -> FixSettings:
        return self._settings[fix]

    def __iter__(self) -> Iterator[str]:
        return iter(self._settings)

    def __len__(self) -> int:
        return len(self._settings)

    def __hash__(self) -> int:
        return hash(json.dumps(self._settings, sort_keys=True, default=str))

    def __repr__(self) -> str:
        return f"FixSet({self._settings!r})"

    @property
    def ids(self) -> tuple[str, ...]:
        """Return the ids, in order."""
        return tuple(self._settings)

    @property
    def first(self) -> str:
        """Return the id of the first fix; ValueError: the set is empty."""
        for fix in self._settings:
            return fix
        raise ValueError("An empty set has no first fix.")

    @property
    def only(self) -> str | None:
        """Return the id of its one fix; None: it holds several, or none."""
        return self.first if len(self) == 1 else None

    def with_settings(self, fix: str, settings: FixSettings) -> "FixSet":
        """Return the set with other settings of one of its fixes."""
        return FixSet({**self._settings, fix: settings})

    def joined(self, other: "FixSet") -> "FixSet":
        """Return both sets in order; a fix in both keeps the settings that it has here."""
        return FixSet({**self._settings, **{fix: other[fix] for fix in other if fix not in self}})

    def limited_to(self, fixes: Iterable[str]) -> "FixSet":
        """Return the fixes of the set that are among these, in the set's order."""
        kept = set(fixes)
        return FixSet((fix, settings) for fix, settings in self.items() if fix in kept)

    def ordered_by(self, order: Iterable[str]) -> "FixSet":
        """Return the set in this order; what is not named comes last, as before."""
        named = [fix for fix in order if fix in self]
        return FixSet((fix, self[fix]) for fix in dict.fromkeys([*named, *self]))
