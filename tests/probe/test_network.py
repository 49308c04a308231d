"""Which other machines a program speaks to: noted by the probe, and read back for each launch."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from probed import PROBE, environment, write_plan

from torchdoctor.launch.contacts import contacts, network_use
from torchdoctor.schema import HostContact

# A server of the program's own, that stands for every other machine: no test needs a network.
ANSWERED = """
    import socket, threading
    server = socket.socket(); server.bind(("127.0.0.1", 0)); server.listen()
    def serve():
        while True:
            client, _ = server.accept()
            client.recv(65536)
            client.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")
            client.close()
    threading.Thread(target=serve, daemon=True).start()
    import _socket
    real = _socket.socket.connect
    PORT = server.getsockname()[1]
    """
# Below the probe's hooks, where the kernel would be: it connects to that server instead.
SHIM = """
    import socket
    hooked = socket.socket.connect
    def answered(sock, address):
        return real(sock, ("127.0.0.1", PORT))
    for cell in hooked.__closure__:
        if cell.cell_contents is real:
            cell.cell_contents = answered
    def resolve(host, port, *args, **kwargs):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (NAMES.get(host, host), port))]
    NAMES = {"hooks.example.com": "203.0.113.7", "data.example.com": "203.0.113.8"}
    looked_up = socket.getaddrinfo
    for cell in looked_up.__closure__:
        if callable(cell.cell_contents):
            cell.cell_contents = resolve
    """


@pytest.fixture(scope="module")
def network() -> Any:
    """The probe's file as the program's process loads it, without its hooks."""
    spec = importlib.util.spec_from_file_location("network_of_the_probe", PROBE / "network.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("host", "port"),
    [
        *(("localhost", 80), ("127.0.0.1", 80), ("127.9.9.9", 1), ("::1", 443), ("0.0.0.0", 80)),
        *(("::ffff:127.0.0.1", 80), ("169.254.169.254", 80), ("fe80::1%eth0", 80)),
        *(("8.8.8.8", 53), ("api.wandb.ai", 443), ("www.comet.com", 443)),
        *(("10.0.0.7", 29400), ("head.cluster", 1234), ("meeting.cluster", 29500)),
    ],
)
def test_this_machine_peers_and_offline_trackers_do_not_count(
    network: Any, monkeypatch: pytest.MonkeyPatch, host: str, port: int
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "head.cluster")
    monkeypatch.setenv("PET_RDZV_ENDPOINT", "meeting.cluster:29400")
    monkeypatch.setitem(network._names, "10.0.0.7", "head.cluster")
    assert not network.leaves_the_machine(host, port)


@pytest.mark.parametrize(
    "host", ["192.0.2.2", "hooks.slack.com", "2001:db8::1", "10.0.0.8", "notwandb.ai"]
)
def test_any_other_machine_counts(network: Any, host: str) -> None:
    assert network.leaves_the_machine(host, 443)


def launched(folder: Path, source: str, **variables: str) -> list[HostContact]:
    """Run a script with the probe, without torch; its connections end at a server of its own."""
    script = folder / "train.py"
    parts = (ANSWERED, SHIM, source)
    script.write_text("\n".join(textwrap.dedent(part) for part in parts))
    plan = write_plan(folder)
    surroundings = environment(plan, **variables)
    ended = subprocess.run(
        [sys.executable, str(script)], cwd=folder, env=surroundings, capture_output=True, text=True,
        timeout=600,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert not list((folder / "channel").glob("probe-error-*"))
    return contacts(folder / "channel")


def test_a_post_is_told_from_reads(tmp_path: Path) -> None:
    found = launched(
        tmp_path,
        """
        import urllib.request
        urllib.request.urlopen("http://data.example.com/set.csv").read()
        urllib.request.urlopen("http://data.example.com/more.csv").read()
        urllib.request.urlopen("http://hooks.example.com/start", data=b"{}").read()
        """,
    )
    by_host = {contact.host: contact for contact in found}
    assert by_host.keys() == {"data.example.com", "hooks.example.com"}
    assert not by_host["data.example.com"].sends
    assert by_host["data.example.com"].connections == 2
    assert by_host["hooks.example.com"].sends
    assert by_host["hooks.example.com"].methods == ["POST"]


def test_what_is_no_http_counts_as_sending(tmp_path: Path) -> None:
    """A database's client, for instance: nobody can tell what it asks for."""
    (contact,) = launched(
        tmp_path, 'socket.create_connection(("hooks.example.com", 3306)).sendall(b"x")'
    )
    assert (contact.host, contact.port, contact.sends) == ("hooks.example.com", 3306, True)
    assert contact.methods == []


def test_children_count_too(tmp_path: Path) -> None:
    source = """
    import os, subprocess, sys
    if os.environ.get("CHILD") is None:
        subprocess.run([sys.executable, __file__], env={**os.environ, "CHILD": "1"}, check=True)
    else:
        socket.create_connection(("hooks.example.com", 9000)).close()
    """
    (contact,) = launched(tmp_path, source)
    assert (contact.host, contact.port) == ("hooks.example.com", 9000)


def test_what_sends_nothing_is_not_counted(tmp_path: Path) -> None:
    """Programs learn their own address from a datagram socket, and fail to connect."""
    found = launched(
        tmp_path,
        """
        own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        own.connect(("127.0.0.1", 80))
        if hasattr(socket, "AF_NETLINK"):  # to the kernel, by the number of a process
            kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
            kernel.sendto(b"x" * 16, (0, 0))
        server.close()
        def refuse(sock, address): raise ConnectionRefusedError(111, "refused")
        for cell in hooked.__closure__:
            if cell.cell_contents is answered:
                cell.cell_contents = refuse
        import urllib.request
        try:
            urllib.request.urlopen("http://hooks.example.com/start", data=b"{}")
        except OSError as error:
            assert "refused" in str(error)
        """,
    )
    assert found == []


def test_a_request_through_a_proxy_counts_for_its_target(tmp_path: Path) -> None:
    proxy = "http://user:secret@proxy.example.com:3128"
    (contact,) = launched(
        tmp_path,
        'import urllib.request\nurllib.request.urlopen("http://hooks.example.com/x", data=b"1")\n',
        http_proxy=proxy,
        no_proxy="",
    )
    assert (contact.host, contact.methods, contact.sends) == ("hooks.example.com", ["POST"], True)


def test_rows_of_all_processes_and_of_all_launches_come_together(tmp_path: Path) -> None:
    (tmp_path / "network-1.log").write_text("c\t10.9.8.7\t443\nr\tx.org\t443\tGET\tx.org\n")
    (tmp_path / "network-2.log").write_text("d\t10.9.8.6\t8125\nd\tcut of")
    launch = contacts(tmp_path)
    assert {(x.host, x.sends) for x in launch} == {("x.org", False), ("10.9.8.6", True)}
    use = network_use([launch, launch, []], is_on=True)
    assert use is not None and use.launches == 3
    first = use.hosts[0]
    assert (first.host, first.launches, first.connections) == ("10.9.8.6", 2, 2)
    assert [x.host for x in use.sent_to] == ["10.9.8.6"]
    assert network_use([], is_on=False) is None


def test_the_watch_of_a_real_training_hooks_into_nothing(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, watch={})
    code = "import socket, sys; print(sorted(x for x in sys.modules if 'torchdoctor' in x))"
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment(plan), capture_output=True, text=True,
        timeout=600, cwd=os.fspath(tmp_path),
    )  # fmt: skip
    assert ended.stdout == "[]\n", ended.stderr
