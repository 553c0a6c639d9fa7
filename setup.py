"""The README as a package page shows it: without pictures, and with the paths of links in place of the links.

Relative links break outside of the repository; everything else about the package is in pyproject.toml.
"""

import re
from pathlib import Path

from setuptools import setup

RELATIVE = r"\]\((?!https?:|#)([^)]*)\)"


def page(readme: str) -> str:
    """The README for a package page."""
    without_pictures = re.sub(rf"!\[[^\]]*{RELATIVE}\n*", "", readme)
    return re.sub(
        rf"\[([^\]]*){RELATIVE}",
        lambda link: link[1] if link[1].rstrip("/") in link[2] else f"{link[1]} ({link[2]})",
        without_pictures,
    )


setup(
    long_description=page((Path(__file__).parent / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
