"""A template with its values -> a sentence.

`{share:.0%}` is a value as Python formats it. Named formats: `{x:seconds}`, `{x:memory}`,
`{x:percent}` (a decimal below a tenth), `{x:ratio}`, `{x:duration}` (that a person waits),
`{x:clock}` and `{x:moment}` (of Unix time), `{x:place}` (a location), `{x:path}`,
`{x:interval}` (a speed-up: low, estimate, high), `{x:binary}` (a disk's bytes: "1.5 GiB"),
`{x:exit}` (a program's code: "exit code 1"),
`{x:whole_percent}` (as "6 %", however small), `{x:fact}` (another fact, without its full stop),
`{x:sentence}` (another fact as it is),
`{x:counted copy, copies}`, `{x:list}`, and `{x:each NAME}` (each item by the template NAME); the
last two may end in their separator: `{x:list|; }`. What stands in brackets is left out where a
value in it is None. `{each_step}` and the like are words of the report (`reports.vocabulary`).
"""

import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchdoctor.schema import Interval
from torchdoctor.schema.figures import (
    binary_size,
    certain_speedup,
    clock,
    counted,
    duration,
    exit_code,
    memory,
    moment,
    percent,
    place,
    ratio,
    relative,
    seconds,
)

_OF_A_FIGURE: dict[str, Callable[[Any], str]] = {
    "seconds": seconds,
    "memory": memory,
    "binary": binary_size,
    "exit": exit_code,
    "percent": percent,
    "ratio": ratio,
    "duration": duration,
    "clock": clock,
    "whole_percent": lambda share: f"{100 * share:.0f} %",
    "moment": moment,
}
_OPTIONAL = re.compile(r"\[([^\[\]]*)\]")
_COMMA = ", "


def filled(
    template: str, values: Mapping[str, Any], templates: Mapping[str, str], cwd: str = ""
) -> str:
    """Return the sentence; paths are relative to `cwd`, items of lists use other `templates`.

    Raise KeyError where the template names a value that is not among them.
    """
    formatter = _Formatter(templates, values, cwd)

    def optional(match: re.Match[str]) -> str:
        names = [name for _, name, _, _ in formatter.parse(match[1]) if name]
        return match[1] if all(values[name] is not None for name in names) else ""

    return formatter.vformat(_OPTIONAL.sub(optional, template), (), values)


class _Formatter(string.Formatter):
    """Formats values by the named formats."""

    def __init__(self, templates: Mapping[str, str], values: Mapping[str, Any], cwd: str) -> None:
        self.templates = templates
        self.values = values
        self.cwd = cwd

    def format_field(self, value: Any, spec: str) -> str:
        kind, _, separator = spec.partition("|")
        name, _, argument = kind.partition(" ")
        if name in _OF_A_FIGURE:
            return _OF_A_FIGURE[name](value)
        match name:
            case "place":
                return place(value, self.cwd)
            case "interval":
                low, estimate, high = value
                return certain_speedup(Interval(low=low, estimate=estimate, high=high))
            case "path":
                return relative(value, self.cwd)
            case "counted":
                return counted(value, *argument.split(_COMMA))
            case "fact":
                return self._sentence(value).rstrip(".")
            case "sentence":
                return self._sentence(value)
            case "list":
                return (separator or _COMMA).join(map(str, value))
            case "each":
                return (separator or _COMMA).join(self._items(value, argument))
        return str(super().format_field(value, spec))

    def _sentence(self, evidence: Mapping[str, Any]) -> str:
        template = self.templates[evidence["fact"]]
        values = {**self.values, **evidence["values"]}
        return filled(template, values, self.templates, self.cwd)

    def _items(self, items: Sequence[Mapping[str, Any]], name: str) -> list[str]:
        return [
            filled(self.templates[name], {**self.values, **item}, self.templates, self.cwd)
            for item in items
        ]
