"""A real headless Chromium, and servers on loopback for it to look at."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

_Found = TypeVar("_Found")
_PATIENCE_S = 300.0
# What the page's elements and their shadow trees hold, wherever they are nested.
_DEEP = """
const found = [];
(function walk(node) {
  for (const child of node.children || []) {
    if (child.matches(arguments_[0])) found.push(child);
    if (child.shadowRoot) walk(child.shadowRoot);
    walk(child);
  }
})(document);
"""


class Browser:
    """A Chromium that a test looks at pages with."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        """Open a page anew, also where only the part behind # differs from the one before."""
        self.driver.get("about:blank")
        self.driver.get(address)

    def run(self, script: str, *arguments: Any) -> Any:
        """What a piece of JavaScript returns; a promise is waited for."""
        return self.driver.execute_script(script, *arguments)

    def each(self, selector: str, expression: str) -> list[Any]:
        """A JavaScript expression of each element `e`, also within shadow trees."""
        script = f"const arguments_ = arguments; {_DEEP} return found.map(e => {expression});"
        return self.run(script, selector)

    def texts(self, selector: str) -> list[str]:
        """The shown text of each element."""
        found = self.each(selector, "(e.innerText || e.textContent || '').trim()")
        return [" ".join(text.split()) for text in found]

    def wait(self, look: Callable[[], _Found | bool | None]) -> _Found:
        """What `look` finds, as soon as that is something; fails after a while."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            found = look()
            if found:
                return found  # type: ignore[return-value]
            time.sleep(0.3)
        pytest.fail(f"{self.driver.current_url} did not show it within {_PATIENCE_S:.0f} s")

    def picture(self, name: str) -> None:
        """Keep a screenshot in the folder TORCHDOCTOR_SCREENSHOTS, where that is set."""
        if folder := os.environ.get("TORCHDOCTOR_SCREENSHOTS"):
            self.driver.save_screenshot(str(Path(folder) / f"{name}.png"))


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; skips the test with the reason where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    driver_program = shutil.which("chromedriver")
    if program is None or driver_program is None:
        pytest.skip("no Chromium with its driver (Debian packages: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    # A container's root has no user namespaces and a small /dev/shm.
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.add_argument("--window-size=1500,1300")
    service = webdriver.ChromeService(driver_program)
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield Browser(driver)
    finally:
        driver.quit()


@contextmanager
def tensorboard(folder: Path) -> Iterator[str]:
    """A real TensorBoard of a log folder; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder)]
    process = subprocess.Popen(
        [*command, "--port", str(port), "--host", "127.0.0.1", "--load_fast", "false"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        _await_answer(f"{address}/data/plugins_listing", process)
        yield address
    finally:
        process.terminate()
        process.wait(20)


def _await_answer(address: str, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=10):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    pytest.fail("TensorBoard did not start")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A folder's files over HTTP; the address."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
