"""Draw the pictures of docs/report.md: screenshots of a report on an H200, in Chromium, light and dark.

pip install -e '.[report]' playwright pillow
python -m benchmarks.report_pictures
"""

from __future__ import annotations

import io
import lzma
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from PIL import Image
from playwright.sync_api import sync_playwright

import tsm2_tune
from tsm2_tune.commands.errors import Command
from tsm2_tune.errors import ToolMissing

ROOT = Path(__file__).parents[1]
DATABASE = ROOT / "benchmarks/results/h200-pack.db.xz"
PICTURES = ROOT / "docs/pictures"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WINDOW = {"width": 1100, "height": 900}
COLOURS = 64  # few colors keep the file small
SHOTS = {  # file -> color scheme, first and last element shown
    "report-summary.png": ("light", "header", "#summary .scroll >> nth=0"),
    "report-roofline.png": ("dark", "#roofline", "#roofline figure"),
    "report-search.png": ("light", "#convergence", "#maps figure"),
}


@contextmanager
def browser() -> Iterator[Any]:
    """Return the path of the system's Chromium. Raise ToolMissing if it is not installed."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        raise ToolMissing("no Chromium is installed: apt-get install chromium")
    with sync_playwright() as driver:
        yield driver.chromium.launch(executable_path=path, args=["--no-sandbox"])


def picture(page: Any, first: str, last: str) -> bytes:
    """Return a PNG of the page, from the top of one element to the end of another."""
    top = page.locator(first).bounding_box()["y"]
    end = page.locator(last).bounding_box()
    clip = {"x": 0, "y": top, "width": WINDOW["width"], "height": end["y"] + end["height"] - top + 16}
    shot = Image.open(io.BytesIO(page.screenshot(clip=clip, full_page=True)))
    small = io.BytesIO()
    shot.convert("RGB").quantize(COLOURS).save(small, "PNG", optimize=True)
    return small.getvalue()


@click.command(cls=Command)
def main() -> None:
    """Write the pictures."""
    with tempfile.TemporaryDirectory() as folder, browser() as chromium:
        database, report = Path(folder, "h200.db"), Path(folder, "report.html")
        database.write_bytes(lzma.decompress(DATABASE.read_bytes()))
        text = tsm2_tune.report(database).text or ""
        report.write_text(text.replace(f"{folder}/", ""), encoding="utf-8")
        for name, (scheme, first, last) in SHOTS.items():
            page = chromium.new_page(viewport=WINDOW, color_scheme=scheme)
            page.goto(report.as_uri())
            page.wait_for_selector("body[data-ready]")
            content = picture(page, first, last)
            (PICTURES / name).write_bytes(content)
            click.echo(f"{name}: {len(content)} bytes")


if __name__ == "__main__":
    main()
