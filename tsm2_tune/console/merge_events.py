"""Merge the events of a run's devices for one display."""

from __future__ import annotations

from collections.abc import Iterator

from tsm2_tune.tuner.runs.events import Event, OfRun, PairMeasured, PairsStarted, RunEnded, RunStarted

DeviceEvent = tuple[str, Event]  # the name of the device, and one of its events


class MergedEvents:
    """Merger of the events of several devices into one sequence for a display.

    After the search, devices time kernels at other shapes, in pairs of a kernel and a shape. The events of pairs are
    held back until all active devices have finished their search.
    """

    def __init__(self) -> None:
        self._in_pairs = dict[str, bool]()  # whether the device times pairs, by active device
        self._held: list[DeviceEvent] = []  # events of pairs that are held back
        self._most_done = -1  # the largest number of pairs done on any device

    def merged(self, event: OfRun | RunEnded) -> Iterator[DeviceEvent]:
        """Add an event, and yield the events to show now, each with its device's name."""
        name, inner = event.run, event.event if isinstance(event, OfRun) else event
        if isinstance(inner, RunStarted):
            self._in_pairs[name] = False
        elif isinstance(inner, PairsStarted):
            self._in_pairs[name] = True
        elif isinstance(inner, RunEnded):
            self._in_pairs.pop(name, None)
        if self._in_pairs.get(name) and not isinstance(inner, PairsStarted):
            self._held.append((name, inner))
        elif not isinstance(inner, PairsStarted):
            yield name, inner
        yield from self._pairs()

    def _pairs(self) -> Iterator[DeviceEvent]:
        if not self._in_pairs or not all(self._in_pairs.values()):
            return
        if self._most_done < 0:
            self._most_done = 0
            yield "", PairsStarted()
        held, self._held = self._held, []
        for name, event in held:
            if isinstance(event, PairMeasured):
                if event.done < self._most_done:
                    continue
                self._most_done = event.done
            yield name, event
