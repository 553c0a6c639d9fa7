"""Compiled pretuned kernels (cubins), named by the digest of their machine code."""

from __future__ import annotations

import tarfile
from collections.abc import Collection
from importlib import resources

ARCHIVE = "cubins.tar.xz"  # each file in it is a cubin, and its name is the digest


def brought(codes: Collection[str]) -> dict[str, bytes]:
    """Return {digest: cubin} of those kernels in `codes`, digests of machine code, that the package includes."""
    wanted, found = set(codes), dict[str, bytes]()
    archive = resources.files(__package__) / ARCHIVE
    if not wanted or not archive.is_file():
        return found
    with archive.open("rb") as stream, tarfile.open(fileobj=stream, mode="r|xz") as files:
        for member in files:
            content = files.extractfile(member) if member.name in wanted else None
            if content is not None:
                found[member.name] = content.read()
    return found
