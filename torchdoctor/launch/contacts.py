"""The machines that launches connected to, from what the probe noted (`probe/network.py`)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from torchdoctor.schema import HostContact, NetworkUse

_READ = "GET"
Place = tuple[str, int]  # host and port


def contacts(channel: Path) -> list[HostContact]:
    """Return the hosts that one launch connected to, by its channel folder."""
    connections: Counter[Place] = Counter()
    datagrams: Counter[Place] = Counter()
    methods: dict[Place, dict[Place, set[str]]] = defaultdict(lambda: defaultdict(set))
    through_proxy = False
    for letter, *columns in _rows(channel.glob("network-*.log")):
        place = columns[0], int(columns[1])
        if letter == "c":
            connections[place] += 1
        elif letter == "d":
            datagrams[place] += 1
        elif letter == "p":
            through_proxy = True
        elif letter == "r":
            methods[place][columns[3], place[1]].add(columns[2])
    _rename(connections, methods)
    hosts = [
        HostContact(host=place[0], port=place[1], connections=n) for place, n in datagrams.items()
    ]
    for place, count in connections.items():
        if place not in methods:
            hosts.append(HostContact(host=place[0], port=place[1], connections=count))
    for place, targets in methods.items():
        if connections[place] or through_proxy:
            hosts += [_spoken_to(target, connections[place], targets[target]) for target in targets]
    return hosts


def _rows(paths: Iterable[Path]) -> Iterator[list[str]]:
    """Yield the whole rows of these files, cut at their tabs."""
    columns = {"c": 3, "p": 3, "d": 3, "r": 5}
    for path in sorted(paths):
        for line in path.read_text(errors="replace").splitlines():
            row = line.split("\t")
            if len(row) == columns.get(row[0]) and row[2].isdecimal():
                yield row


def _rename(connections: Counter[Place], methods: dict[Place, dict[Place, set[str]]]) -> None:
    """Give connections to bare addresses, whose name C code asked for, the name of a request."""
    for address, port in [place for place in connections if place not in methods]:
        named = [method for method in methods if method[1] == port and not connections[method]]
        if named and _is_address(address):
            connections[named[0]] += connections.pop((address, port))


def _is_address(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdecimal()


def _spoken_to(place: Place, connections: int, methods: set[str]) -> HostContact:
    return HostContact(
        host=place[0],
        port=place[1],
        connections=connections,
        methods=sorted(methods),
        sends=methods != {_READ},
    )


def network_use(launches: Sequence[Sequence[HostContact]], is_on: bool) -> NetworkUse | None:
    """Return what these launches did together; None if there was none."""
    if not launches:
        return None
    by_place: dict[Place, list[HostContact]] = defaultdict(list)
    for launch in launches:
        for contact in launch:
            by_place[contact.host, contact.port].append(contact)
    hosts = [
        HostContact(
            host=host,
            port=port,
            connections=sum(contact.connections for contact in same),
            launches=sum(
                any((contact.host, contact.port) == (host, port) for contact in each)
                for each in launches
            ),
            methods=sorted({method for contact in same for method in contact.methods}),
            sends=any(contact.sends for contact in same),
        )
        for (host, port), same in by_place.items()
    ]
    hosts.sort(key=lambda contact: (not contact.sends, -contact.launches, contact.host))
    return NetworkUse(mode="on" if is_on else "off", launches=len(launches), hosts=hosts)
