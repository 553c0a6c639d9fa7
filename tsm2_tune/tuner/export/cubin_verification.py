"""Selection of an export's cubins whose machine code was verified, and verification of the export's other cubins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from itertools import groupby

from tsm2_tune.errors import InputError
from tsm2_tune.generator.families import parse_config
from tsm2_tune.generator.source import INDEX_BITS, KernelSource
from tsm2_tune.tuner.compile.elf_digest import code_of
from tsm2_tune.tuner.device.lock import device_lock
from tsm2_tune.tuner.device.target import find_target, spec_of
from tsm2_tune.tuner.export.cubins import Codes, compiled_cubins, key_of
from tsm2_tune.tuner.export.module import Cubins
from tsm2_tune.tuner.results.best_view import BestRow
from tsm2_tune.tuner.results.store import Store
from tsm2_tune.tuner.results.trial import Outcome
from tsm2_tune.tuner.search import quarantine
from tsm2_tune.tuner.search.loop import Tuner
from tsm2_tune.tuner.search.options import Options

Tell = Callable[[str], None]


class Unverified(StrEnum):
    """Policy of an export for cubins that were not verified and cannot be verified on this machine."""

    REFUSED = "refused"
    ALLOWED = "allowed"
    LEFT_OUT = "left out"


def verified_cubins(
    store: Store, rows: Sequence[BestRow], sources: Mapping[int, KernelSource], policy: Unverified, tell: Tell
) -> tuple[Cubins, list[str]]:
    """Return the cubin of each kernel in `rows` for each index width, and messages that say why a cubin is missing.

    A cubin is verified if the digest of its machine code is stored with the verdict of a full verification. Every
    other cubin is verified now if this machine has the device on which its kernel was tuned. `policy` decides about
    cubins that cannot be verified now: raise InputError if it is REFUSED. Raise ToolMissing if a cubin must be
    compiled and the compiler is missing.
    """
    codes = _codes(store, rows)
    cubins, missing = compiled_cubins(rows, sources, tell, codes)
    if policy is not Unverified.ALLOWED:
        codes |= _verified_now(store, _unverified(rows, cubins, codes), tell)
    unknown = _unverified(rows, cubins, codes)
    for row in unknown:
        tell(f"not verified with this machine's compiler: {row.config} for {row.problem.text} on {row.device}")
    if unknown and policy is Unverified.REFUSED:
        raise InputError(
            f"{len(unknown)} kernels have binaries that were not verified: export on a machine with"
            f" {unknown[0].device}, where export verifies them; or choose --no-binaries for a module that compiles"
            " at the first call, or --allow-unverified"
        )
    if policy is Unverified.LEFT_OUT:
        dropped = {key_of(row, bits) for row in unknown for bits in INDEX_BITS}
        cubins = {key: binary for key, binary in cubins.items() if key not in dropped}
    return cubins, missing


def _codes(store: Store, rows: Sequence[BestRow]) -> Codes:
    """Return the digests of verified machine code: (kernel's digest, index width) -> digest of the machine code.

    Winners without a stored digest of verified machine code are absent.
    """
    found: Codes = {}
    for row in rows:
        verdict = store.full_verdict(row)
        if verdict is not None and verdict[1] is not None:
            found |= _by_width(row, verdict[1])
    return found


def _by_width(row: BestRow, codes: str) -> Codes:
    return {(row.source_digest, bits): code for bits, code in zip(INDEX_BITS, codes.split(), strict=True)}


def _unverified(rows: Sequence[BestRow], cubins: Cubins, codes: Codes) -> list[BestRow]:
    """Return one winner of each kernel that has an unverified cubin."""
    found = {}
    for row in rows:
        for bits in INDEX_BITS if row.compute_capability else ():
            binary = cubins.get(key_of(row, bits))
            if binary is not None and code_of(binary) != codes.get((row.source_digest, bits), ""):
                found[row.source_digest] = row
    return list(found.values())


def _verified_now(store: Store, rows: Sequence[BestRow], tell: Tell) -> Codes:
    """Verify the kernels in `rows` whose device is in this machine, and store the verdicts.

    Return the digests of the verified machine code: (kernel's digest, index width) -> digest of the machine code.
    Raise InputError if a kernel is wrong.
    """
    found: Codes = {}
    for device, group in groupby(sorted(rows, key=lambda row: row.device), key=lambda row: row.device):
        of_device, spec = list(group), spec_of(device)
        if spec is None:
            continue
        tell(f"verifying {len(of_device)} kernels on {device}, compiled by this machine's compiler")
        target = find_target(spec)
        with device_lock(target), Tuner(target, Options()) as tuner:
            for row in of_device:
                config = parse_config(row.config)
                assert config is not None  # because its kernel was rendered
                result = tuner.verify_in_full(row.problem, config)
                if result.outcome is Outcome.OK and result.verified_code is not None:
                    detail = result.verdict.detail if result.verdict else ""
                    store.add_full_verdict(row.trial_id, detail, result.verified_code)
                    found |= _by_width(row, result.verified_code)
                elif result.outcome not in (Outcome.OK, Outcome.INTERRUPTED):
                    hazards = quarantine.refuted(target, row.problem, config, result)
                    store.refute(row.trial_id, result.outcome, f"verification at export: {result.detail}", hazards)
                    raise InputError(
                        f"{row.config} for {row.problem.text} computes a wrong result if compiled by this"
                        f" machine's compiler, and cannot win any more ({result.detail}): export again"
                    )
    return found
