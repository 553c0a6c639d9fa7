"""Messages between a run and the process that executes its requests on a device, which may be on another machine.

The workers of a Dask cluster get and send them as JSON. Received messages are untrusted: only the classes of this
module and of their fields are decoded, and each value must have its field's type.
"""

from __future__ import annotations

import collections.abc
import json
from collections.abc import Hashable
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Protocol, Union, cast, get_args, get_origin, get_type_hints

from tsm2_tune import errors
from tsm2_tune.errors import TuneError
from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.device.roofline import Ceilings
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.space.guidelines import Guidelines
from tsm2_tune.tuner.device.target import Target
from tsm2_tune.tuner.results.records import config_of
from tsm2_tune.tuner.results.trial import Final, Trial
from tsm2_tune.tuner.runs.events import FinalFailure, VendorLeftOut
from tsm2_tune.tuner.search.options import Options
from tsm2_tune.tuner.search.resume import PriorTrials
from tsm2_tune.tuner.worker.protocol import AttemptResult

MOST_CHARACTERS = 1 << 26  # of one message
NOT_SENT = ("wrap",)  # fields of Toolchain that belong to one process
ERRORS = {name: one for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, TuneError)}


class Channel(Protocol):
    """A connection between a run and a device's process. `recv` raises EOFError if the other end is lost."""

    def send(self, message: Any) -> None: ...
    def recv(self) -> Any: ...
    def poll(self, timeout: float = ...) -> bool: ...


# Messages of the run.


@dataclass(frozen=True, slots=True)
class OpenDevice:
    """The first message: open a device and start its compilers."""

    device: Target | str | None  # a string is resolved by the receiver; None: GPU 0, or the host
    options: Options
    wait: bool  # whether to wait for another run on the device


@dataclass(frozen=True, slots=True)
class Expect:
    """Prepare for a problem. There is no answer."""

    problem: Problem


@dataclass(frozen=True, slots=True)
class BeginSearch:
    """Try the candidates that follow, until EndSearch. The answers are TrialEnded, and at last SearchEnded."""

    problem: Problem
    options: Options
    fastest_us: float | None  # the least time of a correct kernel so far


@dataclass(frozen=True, slots=True)
class Try:
    """A candidate of the search."""

    config: KernelConfig
    guidelines: Guidelines  # a trial records which of them the compiled kernel breaks
    fastest_us: float | None  # as in BeginSearch


@dataclass(frozen=True, slots=True)
class EndSearch:
    """Try no more candidates than those that the worker process has already."""


@dataclass(frozen=True, slots=True)
class RunFinal:
    """Time the fastest kernels, interleaved: see `Executor.final`. The answer is FinalEnded."""

    problem: Problem
    options: Options
    prior: PriorTrials
    also: tuple[str, ...]
    repeat: bool


@dataclass(frozen=True, slots=True)
class VerifyInFull:
    """Verify a kernel in full. The answer is an AttemptResult."""

    problem: Problem
    config: KernelConfig


Request = OpenDevice | Expect | BeginSearch | Try | EndSearch | RunFinal | VerifyInFull
REQUESTS = get_args(Request)

# Messages of the device's process.


@dataclass(frozen=True, slots=True)
class Opened:
    """The device is open."""

    target: Target
    ceilings: Ceilings
    ahead: int  # number of candidates that the process takes before it answers the first


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence for the user, while the device opens."""

    text: str


@dataclass(frozen=True, slots=True)
class Phase:
    """The process has entered another phase: see PhaseTimer."""

    name: str


@dataclass(frozen=True, slots=True)
class TrialEnded:
    """A candidate was tried."""

    trial: Trial


@dataclass(frozen=True, slots=True)
class SearchEnded:
    """All candidates that were to be tried have been."""


@dataclass(frozen=True, slots=True)
class FinalEnded:
    """The answer to RunFinal."""

    final: Final | FinalFailure | None
    left_out: VendorLeftOut | None


@dataclass(frozen=True, slots=True)
class Failed:
    """The last message: the device or its process failed."""

    error: TuneError


Answer = Opened | Note | Phase | TrialEnded | SearchEnded | FinalEnded | AttemptResult | Failed
ANSWERS = get_args(Answer)

# The messages as JSON.


class Malformed(Exception):
    """Error: a received message is not valid."""


def encode(record: object) -> str:
    """Return the dataclass object as JSON."""
    return json.dumps(_plain(record))


def decode(text: object, kinds: tuple[type[Any], ...]) -> Any:
    """Decode JSON that `encode` returned, as one of the classes `kinds`. Raise Malformed for any other text."""
    if not isinstance(text, str) or len(text) > MOST_CHARACTERS:
        raise Malformed("no text")
    try:
        found = json.loads(text)
        return _decoded(_chosen(kinds, _object(found)), found)
    except Exception as error:  # values of any kind, in any order
        raise Malformed(str(error)) from error


def _plain(value: Any) -> Any:
    """Return the value as JSON's types. An object becomes a dict, in which "is" contains the name of its class."""
    match value:
        case Enum():
            return value.value
        case None | bool() | int() | float() | str():
            return value
        case KernelConfig():
            return {"is": "KernelConfig", "family": value.family, "config": value.text, "tunables": value.json}
        case TuneError():
            kind = next(one.__name__ for one in type(value).__mro__ if one.__name__ in ERRORS)
            return {"is": "TuneError", "class": kind, "text": str(value)}
        case collections.abc.Mapping():
            return {key: _plain(one) for key, one in value.items()}
        case tuple() | list() | set() | frozenset():
            return [_plain(one) for one in value]
    assert is_dataclass(value), type(value)
    return {"is": type(value).__name__} | {
        name: _plain(getattr(value, name)) for name in _sent(cast(Hashable, type(value)))
    }


def _decoded(hint: Any, found: Any) -> Any:
    """Decode a value of type `hint` that `_plain` encoded. Raise an exception of any kind if the value is invalid."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _decoded(_chosen(inner, found), found)
    if origin is tuple and inner[-1] is not Ellipsis:
        return tuple(_decoded(each, one) for each, one in zip(inner, _list(found), strict=True))
    if origin in (tuple, list, frozenset):
        return origin(_decoded(inner[0], one) for one in _list(found))
    if origin is collections.abc.Mapping:
        return {key: _decoded(inner[1], one) for key, one in _object(found).items()}
    if hint is float and type(found) is int:
        return float(found)
    if hint in (NoneType, bool, int, float, str):
        if type(found) is not hint:
            raise TypeError(f"{errors.shown(found)} is not of type {hint.__name__}")
        return found
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(found)
    record = _object(found)
    if hint is KernelConfig:
        return config_of(*(_decoded(str, record[name]) for name in ("family", "config", "tunables")))
    if hint is TuneError:
        return ERRORS[_decoded(str, record["class"])](_decoded(str, record["text"]))
    return hint(**{name: _decoded(one, record[name]) for name, one in _sent(hint).items()})


def _chosen(of: tuple[Any, ...], found: Any) -> Any:
    """Return the type in `of` of the encoded value. Raise IndexError if the value has none of these types."""
    others = [one for one in of if one is not NoneType]
    if found is not None and len(others) == 1:
        return others[0]
    if isinstance(found, dict):
        return [one for one in of if getattr(one, "__name__", "") == found["is"]][0]  # noqa: RUF015
    if isinstance(found, list):
        return [one for one in of if get_origin(one) is list][0]  # noqa: RUF015
    return type(found) if type(found) in of else [one for one in of if one in (float, NoneType)][0]  # noqa: RUF015


@cache
def _sent(kind: Hashable) -> dict[str, Any]:
    """Return the type of each field of the dataclass, by name, without the fields in NOT_SENT."""
    assert isinstance(kind, type)
    hints = get_type_hints(kind)
    return {one.name: hints[one.name] for one in fields(kind) if one.name not in NOT_SENT}


def _list(found: Any) -> list[Any]:
    if not isinstance(found, list):
        raise TypeError("no list")
    return found


def _object(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise TypeError("no record")
    return found
