"""Bugs that a host cannot show: of copies, of order between blocks, of fragments, of alignment."""

from __future__ import annotations

from tests.bugs_in_classes import GEMM, GEMV, STAGED, TSMR_MMA, TSMT, Found, case

ON_GPU = Found.ON_GPU
WAIT = 'asm volatile("cp.async.wait_group %0;" :: "n"(pending_groups) : "memory");'
UNSEEN_BY_A_HOST = (
    case("order", "no wait for copies", GEMM, WAIT, "", found=ON_GPU),
    case("order", "no wait for copies of a ring", STAGED, WAIT, "", found=ON_GPU),
    case(
        "order",
        "no order between blocks",
        TSMT,
        "atom.acq_rel.gpu",
        "atom.relaxed.gpu",
        dtype="f64",
        op="tn",
        found=ON_GPU,
    ),
    case(
        "order",
        "factors of the tensor cores in another order",
        TSMR_MMA,
        '"d"(a[0]), "d"(a[1])',
        '"d"(a[1]), "d"(a[0])',
        dtype="f64",
        op="nt",
        found=ON_GPU,
    ),
    case(
        "alignment",
        "half a vector's alignment of an address",
        GEMV,
        "(reinterpret_cast<unsigned long long>(X) | ld",
        "((reinterpret_cast<unsigned long long>(X) & ~8ull) | ld",
        found=ON_GPU,
    ),
)
