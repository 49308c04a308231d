"""What launches send to other machines: counted for each launch, and cut off by `--network off`.

A server on an address of this machine that is not loopback's stands for another machine.
"""

from __future__ import annotations

import http.server
import json
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from commands import torchdoctor
from launching import launch_script
from light_torch import LIGHT

from torchdoctor.bench.record import Recorder
from torchdoctor.launch import sandbox as sandbox_module
from torchdoctor.launch.contacts import contacts
from torchdoctor.launch.sandbox import Sandbox
from torchdoctor.schema import Workload, message
from torchdoctor.schema.errors import NoStepFound, ProgramFailed, UsageError
from torchdoctor.schema.record_files import read_report

POSTS = """
import urllib.request
try:
    urllib.request.urlopen("{address}/start", data=b"x", timeout=10).read()
except OSError as error:
    print("cut off")
"""
# It ends by itself after a second, which is when observing it ends.
TRAINS = f"""
import time, torch
{LIGHT}
model = torch.nn.Linear(4, 1)
data = torch.utils.data.TensorDataset(torch.zeros(600, 4))
for x, in torch.utils.data.DataLoader(data, batch_size=2):
    time.sleep(0.003)
    model(x).sum().backward()
"""


@dataclass
class Server:
    """Counts what it is sent."""

    address: str
    posts: list[str] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    places = [x for found in psutil.net_if_addrs().values() for x in found]
    hosts = [x.address for x in places if x.family == socket.AF_INET]
    hosts = [host for host in hosts if not host.startswith(("127.", "169.254."))]
    if not hosts:
        pytest.skip("this machine has no address but loopback's")
    counted = Server("")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            counted.posts.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with http.server.ThreadingHTTPServer((hosts[0], 0), Handler) as listening:
        counted.address = f"http://{hosts[0]}:{listening.server_port}"
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield counted
        listening.shutdown()
        thread.join()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture(params=["with a PID namespace", "without one", "in a user namespace"])
def cut_off(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    try:
        chosen = Sandbox.choose("auto", network=False)
    except UsageError as error:
        pytest.skip(str(error))
    with chosen:
        if request.param == "without one":
            chosen.pidns = False
        if request.param == "in a user namespace" and not chosen.userns:
            chosen.userns = True
            if sandbox_module.trial(chosen, None) is not None:
                pytest.skip("no user namespace here")
        yield chosen


def test_a_post_is_noted_with_its_launch(server: Server, project: Path) -> None:
    with Sandbox.choose("auto") as sandbox:
        result = launch_script(project, POSTS.format(address=server.address), sandbox)
    (contact,) = contacts(result.channel)
    assert server.posts == ["/start"]
    assert (contact.methods, contact.sends, contact.connections) == (["POST"], True, 1)
    assert server.address == f"http://{contact.host}:{contact.port}"


def test_without_the_network_nothing_arrives(
    server: Server, project: Path, cut_off: Sandbox
) -> None:
    result = launch_script(project, POSTS.format(address=server.address), cut_off)
    assert (result.exit_code, result.output_tail) == (0, "cut off\n")
    assert server.posts == []
    assert contacts(result.channel) == []


def test_processes_of_one_launch_still_meet(
    project: Path, cut_off: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the loopback's addresses, and under the address that the machine's name has."""
    monkeypatch.setattr(sandbox_module, "_own_addresses", lambda: ["203.0.113.5", "203.0.113.6"])
    source = """
import socket, subprocess, sys
for host in ("127.0.0.1", "203.0.113.5", "203.0.113.6"):
    server = socket.create_server((host, 0))
    place = server.getsockname()
    code = f"import socket; socket.create_connection({place!r}).sendall(b'met')"
    child = subprocess.Popen([sys.executable, "-c", code])
    print(host, server.accept()[0].recv(9).decode(), child.wait())
"""
    result = launch_script(project, source, cut_off)
    expected = [f"{host} met 0" for host in ("127.0.0.1", "203.0.113.5", "203.0.113.6")]
    assert result.output_tail.splitlines() == expected


@pytest.mark.parametrize("mode", ["none", "landlock"])
def test_other_sandboxes_cannot_cut_off(mode: str) -> None:
    with pytest.raises(UsageError, match="--network off"):
        Sandbox.choose(mode, network=False)


def test_without_namespaces_no_launch_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not go on with the network on."""
    monkeypatch.setattr(
        sandbox_module, "trial", lambda sandbox, workload: message("not permitted.")
    )
    with pytest.raises(UsageError, match=r"--network off.*not permitted"):
        Sandbox.choose("auto", network=False)


def test_a_program_that_needs_the_network_is_told_so(project: Path, cut_off: Sandbox) -> None:
    (project / "train.py").write_text(
        "import socket\nsocket.create_connection(('203.0.113.9', 80), timeout=5)\n"
    )
    workload = Workload(command=[sys.executable, "train.py"], cwd=str(project))
    recorder = Recorder(workload, project.parent / "out", cut_off, 0, None, 60.0)
    with pytest.raises(ProgramFailed, match="--network off") as failure:
        recorder.observe(None, 0.2, 5.0)
    assert failure.value.program_exit_code == 1


def test_an_error_before_any_report_names_the_host(server: Server, project: Path) -> None:
    """A program without a training step had sent its message all the same."""
    (project / "train.py").write_text(POSTS.format(address=server.address))
    workload = Workload(command=[sys.executable, "train.py"], cwd=str(project))
    with Sandbox.choose("auto") as sandbox:
        recorder = Recorder(workload, project.parent / "out", sandbox, 0, None, 60.0)
        with pytest.raises(NoStepFound, match=server.address.removeprefix("http://")):
            recorder.observe(None, 0.2, 5.0)


@pytest.mark.slow
@pytest.mark.parametrize("network", ["on", "off"])
def test_a_run_counts_what_each_launch_sent(server: Server, project: Path, network: str) -> None:
    """A request at the start came sixteen times, and the report did not say a word."""
    (project / "train.py").write_text(POSTS.format(address=server.address) + TRAINS)
    words = ("run", "--no-fixes", "--budget", "2m", "--output", "out", "--network", network)
    ended = torchdoctor(*words, "train.py", cwd=project)
    if ended.returncode == 2:
        pytest.skip(ended.stderr)
    assert ended.returncode == 0, ended.stderr
    report = read_report(project / "out" / "report.json")
    assert report.network is not None and report.network.mode == network
    assert report.network.launches == 2, "observed, and profiled"
    assert ("--network off" in report.reproduce[0]) == (network == "off")
    recording = json.loads((project / "out" / "recording.json").read_text())
    assert recording["recording"]["network"]["launches"] == 2
    if network == "off":
        assert server.posts == [] and report.network.sent_to == []
        return
    (contact,) = report.network.sent_to
    assert len(server.posts) == contact.connections == contact.launches == 2
    assert contact.place in ended.stdout and contact.place in ended.stderr
