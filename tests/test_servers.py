"""A server, which has no step, is told what to do instead; a job that waits for others is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from observed_programs import recorder_of

from torchdoctor.launch.listening import ServerWatch, listening_port
from torchdoctor.schema.errors import NoStepFound

SERVER = """
import socket, sys, time
server = socket.socket(socket.AF_INET{family})
server.bind(("{host}", 0))
server.listen()
print(server.getsockname()[1], flush=True)
{then}
"""


def started(
    then: str, family: str = "", host: str = "127.0.0.1", program: str | Path = sys.executable
) -> tuple[subprocess.Popen, int]:
    source = SERVER.format(then=then, family=family, host=host)
    server = subprocess.Popen([program, "-S", "-c", source], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    line = server.stdout.readline()
    if not line:
        pytest.skip("this machine has no such network")
    return server, int(line)


@pytest.mark.parametrize(("family", "host"), [("", "127.0.0.1"), ("6", "::1")])
def test_the_port_that_a_process_listens_on_is_seen(family: str, host: str) -> None:
    server, port = started("time.sleep(60)", family, host)
    try:
        assert listening_port(server.pid) == port
    finally:
        server.kill()
        server.wait()
    assert listening_port(server.pid) is None


def test_who_listens_and_idles_only_serves_and_who_computes_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, port = started("time.sleep(60)")
    used_s = [0.0]
    monkeypatch.setattr("torchdoctor.launch.listening._cpu_s", lambda process: used_s[0])
    try:
        busy, idle = ServerWatch(), ServerWatch()
        for second in range(20):
            used_s[0] += 0.5
            assert not busy.only_waits(server.pid, float(second))
        looks = [idle.only_waits(server.pid, float(second)) for second in range(20)]
    finally:
        server.kill()
        server.wait()
    assert not looks[5] and looks[12]
    assert busy.port == idle.port == port


@pytest.mark.skipif(sys.platform != "linux", reason="a process has the name of its link there")
def test_who_started_ranks_on_other_nodes_listens_for_them_and_serves_nobody(
    tmp_path: Path,
) -> None:
    """Of a training whose nodes took ten seconds to import torch, it was said to be a server."""
    link = tmp_path / "srun"
    link.symlink_to(sys.executable)
    starter, port = started("time.sleep(60)", program=link)
    try:
        assert listening_port(starter.pid) == port
        watch = ServerWatch()
        assert not any(watch.only_waits(starter.pid, float(second)) for second in range(20))
        assert watch.port is None
    finally:
        starter.kill()
        starter.wait()


@pytest.mark.slow
def test_a_run_of_a_server_ends_with_one_sentence_on_what_to_do(tmp_path: Path) -> None:
    source = """
import torch
from http.server import BaseHTTPRequestHandler, HTTPServer
HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler).serve_forever()
"""
    with pytest.raises(NoStepFound, match="handler"):
        recorder_of(source, tmp_path).observe(None, enough_s=60.0, most_s=200.0)
