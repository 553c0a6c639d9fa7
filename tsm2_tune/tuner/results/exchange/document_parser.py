"""Parse a file in another autotuner's format. The file is untrusted, so every value is checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tsm2_tune.errors import InputError, shown
from tsm2_tune.generator.problem import Problem
from tsm2_tune.generator.source import KernelSource
from tsm2_tune.tuner.results import records
from tsm2_tune.tuner.results.domains import checked
from tsm2_tune.tuner.results.exchange.documents import DOCUMENTS
from tsm2_tune.tuner.results.exchange.entry import NAME, Entry, entry_of
from tsm2_tune.tuner.results.merge.text_parser import WRONG, ParsedTrials, refuse_constant
from tsm2_tune.tuner.results.merge.union import Part, Tried
from tsm2_tune.tuner.results.storage import schema
from tsm2_tune.tuner.results.trial import Outcome, in_a_line


def parse_content(path: Path, content: bytes) -> ParsedTrials:
    """Return the trials in the content of the T4 file or Kernel Tuner cache `path`.

    Raise InputError if another tool wrote it, or if it was altered.
    """
    try:
        found = json.loads(content, parse_constant=refuse_constant, object_pairs_hook=_once)
        if NAME in found:
            return parse_document(found)
    except WRONG as error:
        message = "it is not JSON" if isinstance(error, json.JSONDecodeError) else str(error) or type(error).__name__
        raise InputError(
            f"{path} is not as this tsm2-tune writes it ({in_a_line(message)[:300]}): write it again with"
            f" tsm2-tune export --format {' or '.join(DOCUMENTS)}"
        ) from None
    raise InputError(
        f"cannot read {path}: tsm2-tune did not write it, and kernels and tunables of other tools are not"
        f" configurations of its families; name a file of tsm2-tune export --format {' or '.join(DOCUMENTS)}"
    )


def parse_document(document: Mapping[str, Any]) -> ParsedTrials:
    """Return the trials in a document. Raise one of WRONG if it is not exactly what this program would write."""
    entry = entry_of(document[NAME])
    form = "kernel-tuner-cache" if "cache" in document else "t4"
    if DOCUMENTS[form](entry) != document:
        raise ValueError(f"its member {NAME} and its other members do not agree")
    return _parse_entry(entry)


def _parse_entry(entry: Entry) -> ParsedTrials:
    """Return the entry's trials whose kernels this program still generates."""
    parsed, part = ParsedTrials(), entry.part
    trials = dict(part.trials)
    for key, tried in part.trials.items():
        source, why = _kernel(entry.problem, tried)
        if source is None:
            parsed.left_out.setdefault(key[0], f"left out: {key[0]}, measured on {entry.device}, {why}")
            del trials[key]
        else:
            _check(entry.problem, tried, source)
            parsed.sources[source.digest] = source
    rounds = []
    for one in part.rounds:
        timed = {key: timed for key, timed in one.timed.items() if key in trials}
        if timed or one.vendor:
            rounds.append(replace(one, timed=timed))
    if trials:
        parsed.parts[entry.device, entry.problem] = Part(trials, rounds)
    return parsed


def _kernel(problem: Problem, tried: Tried) -> tuple[KernelSource | None, str]:
    """Generate the trial's kernel. Return (kernel, "") if the generated kernel is the measured kernel."""
    values = tried.values
    config = records.config_of(values["family"], values["config"], values["tunables"])
    if not records.is_of_this_version(config, problem):
        return None, "is not a configuration of this tsm2-tune"
    made = records.current_kernel(problem, values)
    if made is None:
        return None, f"has other kernel code in this tsm2-tune: tune {problem.text} again"
    return made, ""


def _check(problem: Problem, tried: Tried, source: KernelSource) -> None:
    """Raise ValueError if the values of the trial contradict each other."""
    first = None
    if tried.first is not None:
        samples = [{"ordinal": at, "us": us} for at, us in enumerate(tried.first.samples_us)]
        first = records.timed({"round": 0, **tried.first.values}, samples)
    numbers = dict.fromkeys(("id", "run_id", "problem_id"), 0)
    made = records.trial(
        checked({**tried.values, **numbers, "device_name": ""}, schema.trial.columns),
        problem=problem,
        source=source,
        first=first,
    )
    if made.outcome is Outcome.INTERRUPTED or (made.outcome is Outcome.OK) > records.is_verified(made):
        raise ValueError(f"{made.config.text} ended {made.outcome}, and has no right result or no time")


def _once(members: list[tuple[str, Any]]) -> Mapping[str, Any]:
    """Return a JSON object's members as a dict. Raise ValueError if a name occurs twice."""
    found = dict[str, Any]()
    for name, value in members:
        if name in found:
            raise ValueError(f"{shown(name)} appears twice")
        found[name] = value
    return found
