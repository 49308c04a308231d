"""What launches of the program sent over the network."""

from dataclasses import dataclass, field
from typing import Annotated

_WEB_PORTS = (80, 443)


@dataclass(frozen=True, kw_only=True)
class HostContact:
    """Another machine that launches connected to, each pair of host and port by itself."""

    host: str  #: Its name, or its address where the program asked for none.
    port: int  #: The port of the service.
    connections: int = 0  #: By all launches together; of datagrams, processes that sent some.
    launches: int = 0  #: Launches that connected to it.
    methods: list[str] = field(default_factory=list)  #: HTTP methods; GET stands for any read.
    sends: bool = True  #: Anything but reads was seen: another method, or not HTTP.

    @property
    def place(self) -> str:
        """Return the host, with its port where that is not the web's."""
        if self.port in _WEB_PORTS:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class NetworkUse:
    """What launches did on the network, as Python's own sockets show it."""

    mode: Annotated[str, "on", "off"] = "on"  #: The option --network.
    launches: int = 0  #: Launches of the program.
    hosts: list[HostContact] = field(default_factory=list)  #: Those that it sends to come first.

    @property
    def sent_to(self) -> list[HostContact]:
        """Return the hosts that something was sent to."""
        return [contact for contact in self.hosts if contact.sends]
