"""What the program sent to other machines, as sentences and a table for every kind of report."""

from collections.abc import Sequence

from torchdoctor.reports.document import Block, sentences, table
from torchdoctor.schema import HostContact, NetworkUse
from torchdoctor.schema.figures import clean, counted

_MOST_NAMED = 2
_COLUMNS = ["host", "launches", "connections", "HTTP methods", "sends"]


def sent(network: NetworkUse | None) -> str:
    """Return that launches sent something to other machines; empty where none did."""
    hosts = network.sent_to if network is not None else []
    if network is None or not hosts:
        return ""
    most = max(contact.launches for contact in hosts)
    how_often = f"{most} of {counted(network.launches, 'launch', 'launches')} did so"
    if most == network.launches:
        how_often = f"each of the {most} launches did so" if most > 1 else "its launch did so"
    return (
        f"The program connects to {_named(hosts)}, not only to read, and {how_often}. "
        "--network off cuts it off."
    )


def contacts(network: NetworkUse | None) -> list[Block]:
    """Return all hosts that launches connected to, as a table, and whether they could at all."""
    if network is None:
        return []
    if network.mode == "off":
        return sentences("No launch could reach another machine (--network off).")
    rows = [
        [
            clean(contact.place),
            f"{contact.launches} of {network.launches}",
            str(contact.connections),
            clean(", ".join(contact.methods)) or "no HTTP seen",
            "yes" if contact.sends else "reads only",
        ]
        for contact in network.hosts
    ]
    return table(_COLUMNS, rows)


def _named(hosts: Sequence[HostContact]) -> str:
    places = list(dict.fromkeys(clean(contact.place) for contact in hosts))
    named = places[:_MOST_NAMED] if len(places) > _MOST_NAMED + 1 else places[: _MOST_NAMED + 1]
    rest = [f"{len(places) - len(named)} more"] if len(named) < len(places) else []
    *first, last = [*named, *rest]
    return f"{', '.join(first)} and {last}" if first else last
