"""The process that uses a device for a run: it compiles, verifies and times the candidates that the run sends."""

from __future__ import annotations

import queue
import signal
import threading
import traceback
from collections import deque
from contextlib import suppress

from tsm2_tune.errors import TuneError, WorkerError
from tsm2_tune.generator.device.limits import DeviceLimits
from tsm2_tune.generator.families import family_named
from tsm2_tune.generator.space.candidate import Candidate
from tsm2_tune.tuner.device.lock import device_lock
from tsm2_tune.tuner.device.target import Target, default_spec, find_target
from tsm2_tune.tuner.results.trial import in_a_line
from tsm2_tune.tuner.runs import messages
from tsm2_tune.tuner.runs.signals import SIGNALS, stoppable
from tsm2_tune.tuner.search.candidates import Candidates
from tsm2_tune.tuner.search.loop import Tuner, least_ahead
from tsm2_tune.tuner.search.phase_timer import PhaseTimer
from tsm2_tune.tuner.search.strategies.strategy import TrialResult

SILENCE_SECONDS = 1.0  # without a message for so long, the process sends its phase


def serve_device(channel: messages.Channel) -> None:
    """Open a device and answer the requests of a run, until the channel is closed.

    The device's process executes this function.
    """
    sender: _Sender | None = None
    try:
        with stoppable():
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            request = channel.recv()
            assert isinstance(request, messages.OpenDevice)
            sender = _Sender(channel)
            device = request.device
            target = device if isinstance(device, Target) else find_target(device or default_spec())
            tell = (lambda sentence: sender.send(messages.Note(sentence))) if request.wait else None
            with device_lock(target, tell), Tuner(target, request.options) as tuner:
                sender.phases = tuner.phases
                sender.send(messages.Opened(target, tuner.ceilings, 2 * least_ahead(request.options.sharing, None)))
                while True:
                    _answer(channel.recv(), tuner, channel, sender)
    except (KeyboardInterrupt, EOFError, ConnectionError):
        return
    except TuneError as error:
        failure = error
    except Exception:
        failure = WorkerError(in_a_line(traceback.format_exc()))
    if sender is not None:
        sender.end(messages.Failed(failure))


def _answer(request: messages.Request, tuner: Tuner, channel: messages.Channel, sender: _Sender) -> None:
    match request:
        case messages.Expect():
            tuner.expect(request.problem)
        case messages.BeginSearch():
            tuner.options = request.options
            received = _ReceivedCandidates(channel, request, tuner.target.limits)
            while received.await_candidate():  # the loop below ends whenever the run has sent no further candidate
                for trial in tuner.tune(received):
                    sender.send(messages.TrialEnded(trial))
            sender.send(messages.SearchEnded())
        case messages.RunFinal():
            tuner.options = request.options
            final = tuner.final(request.problem, request.prior, request.also, repeat=request.repeat)
            sender.send(messages.FinalEnded(final, tuner.left_out(request.problem)))
        case messages.VerifyInFull():
            sender.send(tuner.verify_in_full(request.problem, request.config))
        case _:
            raise WorkerError(f"a {type(request).__name__} that no request precedes")


class _ReceivedCandidates(Candidates):
    """The candidates that the run sends, until EndSearch. The run also has their strategy."""

    def __init__(self, channel: messages.Channel, request: messages.BeginSearch, limits: DeviceLimits) -> None:
        self._fastest_us = request.fastest_us
        self._channel, self._problem, self._limits = channel, request.problem, limits
        self._candidates = deque[Candidate]()
        self._has_ended = False

    @property
    def is_over(self) -> bool:
        self._receive()
        return self._has_ended

    @property
    def remaining(self) -> int | None:
        return None

    @property
    def fastest_us(self) -> float | None:
        return self._fastest_us

    def __next__(self) -> Candidate:
        self._receive()
        if self._has_ended or not self._candidates:
            raise StopIteration
        return self._candidates.popleft()

    def put_back(self, candidate: Candidate, *, is_suspect: bool = False) -> None:
        self._candidates.appendleft(candidate)

    def tell(self, result: TrialResult, seconds: float = 0.0) -> None:
        if result.is_right and result.us is not None:
            self._lower_fastest(result.us)

    def is_postponed(self, candidate: Candidate) -> bool:
        return False  # the run returns such a candidate last

    def await_candidate(self) -> bool:
        """Wait for a candidate. Return False if the search ends instead."""
        while not self._candidates and not self._has_ended:
            self._handle(self._channel.recv())
        return not self._has_ended

    def _receive(self) -> None:
        """Receive the messages that have arrived."""
        while not self._has_ended and self._channel.poll(0):
            self._handle(self._channel.recv())

    def _handle(self, message: messages.Request) -> None:
        if isinstance(message, messages.Try):
            config, family = message.config, family_named(message.config.family)
            self._candidates.append(Candidate(family, config, self._problem, self._limits, message.guidelines))
            if message.fastest_us is not None:
                self._lower_fastest(message.fastest_us)
        else:
            self._has_ended = True

    def _lower_fastest(self, us: float) -> None:
        self._fastest_us = us if self._fastest_us is None else min(us, self._fastest_us)


class _Sender:
    """A thread that sends messages and changed phases to the run: a slow run does not delay the measurements."""

    def __init__(self, channel: messages.Channel) -> None:
        self.phases = PhaseTimer()
        self._channel = channel
        self._messages = queue.SimpleQueue[messages.Answer | None]()
        self._thread = threading.Thread(target=self._send_all, name="sender", daemon=True)
        self._thread.start()

    def send(self, message: messages.Answer) -> None:
        self._messages.put(message)

    def end(self, message: messages.Answer) -> None:
        """Send the remaining messages and this last one."""
        self._messages.put(message)
        self._messages.put(None)
        self._thread.join()

    def _send_all(self) -> None:
        phase = ""
        with suppress(OSError):  # the run is gone
            while True:
                try:
                    message = self._messages.get(timeout=SILENCE_SECONDS)
                except queue.Empty:
                    if self.phases.now != phase:
                        phase = self.phases.now
                        self._channel.send(messages.Phase(phase))
                    continue
                if message is None:
                    return
                self._channel.send(message)
