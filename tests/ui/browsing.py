"""A real browser on a real page: `waterspout ui` as a process, and Debian's Chromium, headless."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = Path(os.environ.get("WATERSPOUT_CHROMIUM", "/usr/bin/chromium"))
TOKEN = "open-sesame"
WIDE = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}


@contextmanager
def page_server(home: Path) -> Iterator[str]:
    """Run `waterspout ui` on a home; yield its address."""
    command = [sys.executable, "-m", "waterspout.cli", "ui", "--json", "--until-eof", "--port", "0"]
    command += ["--home", str(home), "-c", f"serve_token={TOKEN}"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield json.loads(line)["url"]
    finally:
        process.kill()
        process.communicate()


@contextmanager
def chromium() -> Iterator[Any]:
    """Yield a browser; skip, and say what to do, where there is none."""
    if not CHROMIUM.exists():
        pytest.skip(f"NO BROWSER at {CHROMIUM}: `make browser` installs it (apt: chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        try:
            yield browser
        finally:
            browser.close()


class Reader:
    """Somebody who reads pages; what a browser complains about is kept."""

    def __init__(self, browser: Any, url: str, size: Any = WIDE, *, dark: bool = False) -> None:
        self.complaints: list[str] = []
        self._url = url.rstrip("/")
        scheme = "dark" if dark else "light"
        context = browser.new_context(viewport=size, color_scheme=scheme, device_scale_factor=1)
        self.page = context.new_page()
        self.page.set_default_timeout(60_000)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._hear)

    def _hear(self, message: Any) -> None:
        if message.type == "error":
            self.complaints.append(message.text)

    def open(self, path: str, text: str) -> None:
        """Open an address and wait until a text can be seen."""
        self.page.goto(f"{self._url}{path}")
        self.sees(text)

    def sees(self, text: str) -> None:
        self.page.get_by_text(text).filter(visible=True).first.wait_for()

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        return self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
