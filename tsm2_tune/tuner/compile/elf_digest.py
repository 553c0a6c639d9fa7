"""Compute a digest of the machine code in an ELF file, without the paths, notes and symbols in the file."""

from __future__ import annotations

import hashlib
import struct

HEADER = struct.Struct("<16s2HI3QI6H")  # Elf64_Ehdr
SECTION = struct.Struct("<2I4Q2I2Q")  # Elf64_Shdr
LITTLE_64 = b"\x7fELF\x02\x01"
PROGBITS, NOBITS, CUDA_INFO = 1, 8, 0x70000000  # types of sections: content, zeros, and a kernel's resources
ALLOC = 2  # flag of a section that is loaded


def machine_code_digest(elf: bytes) -> str:
    """Return the SHA-256 of the loaded sections: instructions, constants, register counts, shared memory.

    Raise ValueError if the bytes are not a complete 64-bit ELF file.
    """
    digest = hashlib.sha256()
    try:
        header = HEADER.unpack_from(elf)
        start, size, count, names = header[6], header[11], header[12], header[13]
        sections = [SECTION.unpack_from(elf, start + size * number) for number in range(count)]
        texts = _content(elf, sections[names])
        for section in sections:
            kind, flags, length = section[1], section[2], section[5]
            if not (kind == CUDA_INFO or (flags & ALLOC and kind in (PROGBITS, NOBITS))):
                continue
            name = texts[section[0] : texts.index(0, section[0])]
            digest.update(b"%s\0%d\0%d\0%d\0" % (name, kind, section[7], length))  # 7: register count of a .text
            digest.update(b"" if kind == NOBITS else _content(elf, section))
    except (struct.error, IndexError) as error:
        raise ValueError(f"a broken ELF file: {error}") from None
    if not elf.startswith(LITTLE_64):
        raise ValueError("not a 64-bit ELF file")
    return digest.hexdigest()


def code_of(elf: bytes) -> str | None:
    """Return the SHA-256 of the machine code in an ELF file; None if the bytes are not a valid file."""
    try:
        return machine_code_digest(elf)
    except ValueError:
        return None


def _content(elf: bytes, section: tuple[int, ...]) -> bytes:
    """Return the section's bytes. Raise IndexError if the file is truncated."""
    start, length = section[4], section[5]
    if start + length > len(elf):
        raise IndexError("it is truncated")
    return elf[start : start + length]
