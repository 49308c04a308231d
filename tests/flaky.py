"""Tests that passed only when run again: they are listed, and more than two of them fail the suite.

`make test` runs pytest twice: the second run (`--last-failed --again`) takes what failed in the
first, one test after the other. What passes then is a defect of the test or of the product.
"""

from __future__ import annotations

import pytest

MOST = 2  # flaky tests in a suite that passes
_STORED = "torchdoctor/first-failures"


def without_group(name: str) -> str:
    """Return a test's own name, to which xdist appends that of its group."""
    own, _, group = name.rpartition("@")
    return own if own and "::" not in group else name


class FirstFailures:
    """Keeps what failed in a first run; says in a second run which of it passed."""

    def __init__(self, cache: pytest.Cache, again: bool) -> None:
        self.cache, self.again = cache, again
        self.failures: dict[str, str] = {}
        self.passed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = without_group(report.nodeid)
        if report.failed:
            self.failures.setdefault(name, report.longreprtext)
        elif report.when == "call" and report.passed:
            self.passed.add(name)

    def flaky(self) -> dict[str, str]:
        """Return the first failure of each test that passed when it was run again."""
        first = self.cache.get(_STORED, {}) if self.again else {}
        return {
            name: failure
            for name, failure in first.items()
            if name in self.passed and name not in self.failures
        }

    @pytest.hookimpl(trylast=True)  # after the cache is written
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if not self.again:
            self.cache.set(_STORED, self.failures)
            # `--last-failed` looks for a test by its own name.
            failed = self.cache.get("cache/lastfailed", {})
            self.cache.set("cache/lastfailed", {without_group(name): True for name in failed})
        elif exitstatus == pytest.ExitCode.OK and len(self.flaky()) > MOST:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        flaky = self.flaky()
        for name, failure in flaky.items():
            terminalreporter.write_sep("-", f"FLAKY {name}: its first failure")
            terminalreporter.write_line(failure[-4000:])
        for name in flaky:
            terminalreporter.write_line(f"FLAKY {name}", yellow=True)
        if len(flaky) > MOST:
            terminalreporter.write_line(
                f"{len(flaky)} tests are flaky; more than {MOST} fail the suite.", red=True
            )
