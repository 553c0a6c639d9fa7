"""Check a GPU's clocks, modes and other processes with nvidia-smi."""

from __future__ import annotations

from tsm2_tune.tuner.compile.command_limits import Ending, run
from tsm2_tune.tuner.compile.environment import program_path
from tsm2_tune.tuner.doctor.finding import Finding, Question, note, ok, problem
from tsm2_tune.tuner.results.trial import in_a_line

TOOL = "nvidia-smi"
ANSWER_SECONDS = 10.0
MODES = ("driver_version", "persistence_mode", "compute_mode", "mig.mode.current")
CLOCKS = ("clocks.sm", "clocks.max.sm", "clocks.applications.graphics", "clocks.default_applications.graphics")
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # drivers before 535 have the second name
# Bits of nvmlClocksEventReasons (nvml.h) that lower the clock while kernels run.
LOWERED = {
    0x2: "a clock setting",
    0x4: "the power limit",
    0x8: "the hardware",
    0x20: "a thermal limit",
    0x40: "a hardware thermal limit",
    0x80: "the power supply",
}
SET_CLOCK = 0x2
UNKNOWN = "unknown"
MOST_PROCESSES = 5  # named in a finding


class _Silent(Exception):
    """nvidia-smi gives no usable output; the message says why."""


class _Refused(_Silent):
    """nvidia-smi does not support the query."""


def nvidia_smi(question: Question) -> list[Finding]:
    """Return findings about the GPU's modes, clocks and processes, or that nvidia-smi is missing or fails."""
    tool = program_path(TOOL)
    means = "clocks, modes and other processes are not checked"
    if tool is None:
        return [note(TOOL, "not found", means=means, remedy="install the driver's tools, and put them in PATH")]
    gpu = question.gpu
    assert gpu is not None  # this probe only runs if there is a GPU
    try:
        return [_modes(tool, gpu["bus_id"]), _clocks(tool, gpu["bus_id"]), _processes(tool, gpu["bus_id"])]
    except _Silent as error:
        return [note(TOOL, f"{tool} {error}", means=means, remedy="read the system's log; restart the driver")]


def _asked(tool: str, bus_id: str, query: str) -> list[list[str]]:
    """Run nvidia-smi with a query. Return its output as a list of fields for each line. Raise _Silent if it fails."""
    command = [tool, f"--id={bus_id}", query, "--format=csv,noheader,nounits"]
    try:
        ended = run(command, limit_seconds=ANSWER_SECONDS, errors=False)
    except OSError as error:
        raise _Silent(f"cannot be started ({error.strerror})") from None
    if not ended.is_well:
        why = in_a_line(ended.messages.strip()) or f"{ended.how.value} {ended.status}"
        raise (_Refused if ended.how is Ending.EXITED else _Silent)(f"fails ({why})")
    return [[field.strip() for field in in_a_line(line).split(",")] for line in ended.messages.splitlines() if line]


def _fields(tool: str, bus_id: str, names: tuple[str, ...]) -> dict[str, str]:
    """Return the value of each field; UNKNOWN if the driver lacks it. Raise _Refused if it lacks all fields."""
    try:
        lines = _asked(tool, bus_id, f"--query-gpu={','.join(names)}")
    except _Refused:
        if len(names) == 1:
            raise
        found = {name: _field(tool, bus_id, name) for name in names}
        if set(found.values()) == {UNKNOWN}:
            raise
        return found
    if len(lines) != 1 or len(lines[0]) != len(names):
        raise _Silent(f"does not report {', '.join(names)}")
    return dict(zip(names, lines[0], strict=True))


def _field(tool: str, bus_id: str, name: str) -> str:
    try:
        return _fields(tool, bus_id, (name,))[name]
    except _Refused:
        return UNKNOWN


def _modes(tool: str, bus_id: str) -> Finding:
    told = _fields(tool, bus_id, MODES)
    found = f"driver {told['driver_version']}, compute mode {told['compute_mode']}"
    found += f", persistence {told['persistence_mode']}, MIG {told['mig.mode.current']}"
    if told["compute_mode"] == "Prohibited":
        return problem("modes", found, means="no process may use the GPU", remedy="nvidia-smi -c DEFAULT, as root")
    if told["mig.mode.current"] == "Enabled":
        means = "times are of a MIG instance, and hold only for instances of the same size"
        return note("modes", found, means=means, remedy="nvidia-smi -mig 0, as root, for the whole GPU")
    if told["persistence_mode"] == "Disabled":
        means = "the driver may unload between runs: then runs start slower and with low clocks"
        return note("modes", found, means=means, remedy="nvidia-smi -pm 1, as root")
    return ok("modes", found, **told)


def _clocks(tool: str, bus_id: str) -> Finding:
    told = _fields(tool, bus_id, CLOCKS)
    bits = _reasons(tool, bus_id)
    found = f"SM {told['clocks.sm']} of at most {told['clocks.max.sm']} MHz"
    lowered = [why for bit, why in LOWERED.items() if bits & bit]
    if not lowered:
        own, usual = told["clocks.applications.graphics"], told["clocks.default_applications.graphics"]
        if own.isdecimal() and usual.isdecimal() and own != usual:
            lowered, bits = [f"{LOWERED[SET_CLOCK]}, {own} MHz"], SET_CLOCK
    if not lowered:
        return ok("clocks", f"{found}, not lowered now", **told)
    found += f", lowered by {', '.join(lowered)}"
    if bits & ~SET_CLOCK & sum(LOWERED):
        return note(
            "clocks", found, means="kernels run slower than on a cool, idle GPU", remedy="cool the GPU, and wait"
        )
    means = "times vary less, but hold only for this clock"
    return note("clocks", found, means=means, remedy="nvidia-smi -rgc and -rac, as root, for the default clocks")


def _reasons(tool: str, bus_id: str) -> int:
    """Return the bit mask of the reasons that lower the GPU's clock now; 0 if it is unknown."""
    for name in REASONS:
        try:
            return int(_fields(tool, bus_id, (name,))[name], 16)
        except (_Silent, ValueError):
            continue
    return 0


def _processes(tool: str, bus_id: str) -> Finding:
    lines = _asked(tool, bus_id, "--query-compute-apps=pid,process_name,used_memory")
    others = [one for one in lines if one[0].isdecimal()]
    if not others:
        return ok("processes", "no other process uses the GPU")
    named = ", ".join(f"{one[0]} ({one[1]})" if len(one) > 1 else one[0] for one in others[:MOST_PROCESSES])
    more = f" and {len(others) - MOST_PROCESSES} more" if len(others) > MOST_PROCESSES else ""
    means = "other processes disturb times and use memory"
    return note(
        "processes", f"{named}{more}", means=means, remedy="end these processes, or name another GPU with --device"
    )
