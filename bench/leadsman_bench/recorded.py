"""`leadsman bench recorded FILE…`: predict a real engine's recorded runs, with what had been seen.

The same Fleet as a live picker's is fed with a recording in the order in which things were seen,
and asked for each request at the moment it was sent. Observations are thinned as live ones are:
first tokens, ends with usage, KV events, and every chunk of two witness streams. Nothing that came
later is used; an answer's length is not known before its end, unless `--true-lengths` gives it.

A calibration (isolated prompts and a decode table, measured on the same engine) is where the speed
starts; without one the worker starts unmeasured. The first requests warm up and are not graded.
Format of a recording: docs/recordings.md.
"""

import argparse
import gzip
import json
import sys
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np
from leadsman.budget import Budget
from leadsman.curve import fingerprint
from leadsman.engine import EngineSettings
from leadsman.fleet import Fleet
from leadsman.grade import Grade, Summary
from leadsman.prediction import Admitted, Prediction, Price
from leadsman.records import (
    Cleared,
    Ended,
    KvEvent,
    KvEvents,
    Learned,
    LoadSample,
    Outcome,
    Record,
    Removed,
    Stored,
    TokensSeen,
    Trust,
    TrustChanged,
    WorkerSeen,
)
from leadsman.request import Request
from leadsman.steptime import StepWeights
from leadsman.units import BlockKey, Keys, RequestId, Seconds, WorkerId

WARM_UP = 20
POLLED_EVERY: Seconds = 0.5
WORKER = WorkerId("recorded:8000")
MODEL = "recorded"
GOLDEN = 0x9E3779B97F4A7C15


@dataclass(slots=True)
class _Blocks:
    """Gives a recording's engine hashes the keys that its prompts have: by parent and depth."""

    prompts: dict[str, list[int]]
    known: dict[int, tuple[BlockKey, int]] = field(default_factory=dict)

    def stored(self, hashes: list[int], parent: int | None, session: str) -> Keys:
        depth = self.known[parent][1] if parent is not None else 0
        prompt = self.prompts[session]
        for engine_hash in hashes:
            number = prompt[depth] if depth < len(prompt) else len(prompt) + (engine_hash << 32)
            depth += 1
            self.known[engine_hash] = (_key(number), depth)
        return self.of(hashes)

    def of(self, hashes: list[int]) -> Keys:
        return np.array([self.known[h][0] for h in hashes], dtype=np.uint64)


def _key(number: int) -> BlockKey:
    return (number + 1) * GOLDEN % (1 << 64)


def _settings(engine: dict[str, Any]) -> EngineSettings:
    return EngineSettings(
        model=MODEL,
        version=engine["version"],
        max_num_batched_tokens=engine["max_num_batched_tokens"],
        max_num_seqs=engine["max_num_seqs"],
        max_model_len=engine["max_model_len"],
        block_size=engine["block_size"],
        num_blocks=engine["num_gpu_blocks"] - 1,
        async_scheduling=engine["async_scheduling"],
    )


def calibrated(calibration: dict[str, Any], settings: EngineSettings) -> Learned:
    """Fit the step weights of isolated prompts and a decode table, relative errors."""
    isolated = [(row["prompt_tokens"], row["ttft_s"]) for row in calibration["isolated_ttft_s"]]
    tokens, seconds = np.array(isolated, dtype=np.float64).T
    overhead, a, b = _relative_fit(np.stack([np.ones_like(tokens), tokens, tokens**2]), seconds)
    table = calibration["decode"]
    width = np.array([row["sequences"] for row in table], dtype=np.float64)
    context = width * np.array([row["context_tokens"] for row in table])
    step = np.array([row["mean_step_s"] for row in table])
    t0, t_d, e = _relative_fit(np.stack([np.ones_like(width), width, context]), step)
    a -= t0 / settings.max_num_batched_tokens
    weights = StepWeights(t0, max(a, 0.0), 2 * b, t_d, e, max(overhead - t0 / 2 - 0.005, 0.0))
    return Learned(
        worker=WORKER,
        fingerprint=fingerprint(settings),
        samples=tuple(isolated),
        step_weights=tuple(weights),
    )


def _relative_fit(columns: np.ndarray, seconds: np.ndarray) -> list[float]:
    fit = np.linalg.lstsq((columns / seconds).T, np.ones_like(seconds), rcond=None)[0]
    return [max(0.0, float(value)) for value in fit]


class Replayed:
    """One recording, played to a Fleet; `summary` grades what the Fleet said.

    covered: of how many the real time kept the bound that the prediction gave.
    """

    def __init__(
        self,
        recording: dict[str, Any],
        calibration: dict[str, Any] | None,
        *,
        true_lengths: bool,
        around: float = 0.0,
    ) -> None:
        self.summary = Summary()
        self.covered = 0
        self.worst: list[tuple[Seconds, str, Price, Seconds, int]] = []
        self._recording = recording
        self._true_lengths = true_lengths
        self._settings = _settings(recording["engine"])
        self._fleet = Fleet()
        self._budget, self._rng = Budget(), Random(1)
        self._blocks = _Blocks({r["id"]: r["prefix_blocks"] for r in recording["requests"]})
        self._predictions: dict[str, Prediction] = {}
        rng = Random(f"{around}")
        self._around = {r["id"] for r in recording["requests"] if rng.random() < around}
        self._witnesses: set[str] = set()
        self._graded = 0
        seen = WorkerSeen(worker=WORKER, endpoint=WORKER, settings=self._settings)
        self._tell(seen, 0.0)
        self._tell(TrustChanged(worker=WORKER, trust=Trust.LIVE, reason="recorded"), 0.0)
        if calibration is not None:
            self._tell(calibrated(calibration, self._settings), 0.0)

    def play(self) -> Summary:
        """Play everything in the order in which it was seen."""
        for at, _, do, what in sorted(self._moments(), key=lambda moment: moment[:2]):
            getattr(self, do)(at, what)
        return self.summary

    def _moments(self) -> Iterator[tuple[Seconds, int, str, Any]]:
        if self._around:
            yield from _loads(self._recording["requests"])
        for request in self._recording["requests"]:
            if request["id"] in self._around:
                continue
            yield request["sent_s"], 0, "_send", request
            for number, at in enumerate(request["chunk_s"], start=1):
                yield at, 2, "_see_chunk", (request, number)
            yield request["end_s"], 3, "_end", request
        for batch in self._recording["kv_events"]:
            yield batch[0], 1, "_see_events", batch

    def _tell(self, record: Record, now: Seconds) -> None:
        self._fleet.apply(record, now)

    def _send(self, at: Seconds, row: dict[str, Any]) -> None:
        keys = np.array([_key(number) for number in row["prefix_blocks"]], dtype=np.uint64)
        known = row["completion_tokens"] if self._true_lengths else None
        request = Request(
            id=RequestId(row["id"]),
            model=MODEL,
            prompt_tokens=row["prompt_tokens"],
            arrived_at=at,
            keys={self._settings.block_size: keys},
            max_tokens=known,
            min_tokens=known or 0,
        )
        decision = self._fleet.decide(request, self._budget, at, self._rng)
        assert isinstance(decision, Admitted), "a budget without bounds refuses nothing"
        assert decision.prediction is not None
        self._predictions[row["id"]] = decision.prediction

    def _see_chunk(self, at: Seconds, what: tuple[dict[str, Any], int]) -> None:
        row, number = what
        if number == 1:
            if self._fleet.wants_witness(WORKER):
                self._witnesses.add(row["id"])
            self._grade(row, at - row["sent_s"])
        if number == 1 or row["id"] in self._witnesses:
            request = RequestId(row["id"])
            self._tell(TokensSeen(worker=WORKER, request=request, at=at, tokens=number), at)

    def _end(self, at: Seconds, row: dict[str, Any]) -> None:
        ended = Ended(
            worker=WORKER,
            request=RequestId(row["id"]),
            at=at,
            outcome=Outcome.FINISHED,
            completion_tokens=row["completion_tokens"],
            cached_tokens=row["cached_tokens"],
        )
        self._tell(ended, at)

    def _see_events(self, at: Seconds, batch: list[Any]) -> None:
        _, sequence, engine_time, told = batch
        record = KvEvents(
            worker=WORKER,
            sequence=sequence,
            engine_time=engine_time,
            received_at=at,
            events=tuple(self._event(event) for event in told),
        )
        self._tell(record, at)

    def _see_load(self, at: Seconds, sample: LoadSample) -> None:
        self._tell(sample, at)

    def _event(self, event: list[Any]) -> KvEvent:
        match event:
            case ["stored", hashes, parent, session]:
                keys = self._blocks.stored(hashes, parent, session)
                return Stored(keys=keys, session=None if session in self._around else session)
            case ["removed", hashes]:
                return Removed(keys=self._blocks.of(hashes))
            case _:
                return Cleared()

    def _grade(self, row: dict[str, Any], actual: Seconds) -> None:
        self._graded += 1
        if self._graded <= WARM_UP:
            return
        prediction = self._predictions[row["id"]]
        price = prediction.price
        self.covered += actual <= prediction.ttft_bound
        self.worst.append(
            (abs(price.ttft - actual), row["id"], price, actual, row["cached_tokens"])
        )
        self.summary.add(
            Grade(
                request=RequestId(row["id"]),
                worker=WORKER,
                model=MODEL,
                prompt_tokens=row["prompt_tokens"],
                predicted=price.ttft,
                actual=actual,
                credited=price.cached_tokens,
                reused=row["cached_tokens"],
                block_size=self._settings.block_size,
            )
        )


def _loads(requests: list[dict[str, Any]]) -> Iterator[tuple[Seconds, int, str, Any]]:
    """Say what the engine's metrics would have said, polled as a collector polls them."""
    spans = [(r["chunk_s"][0] - r["engine_ttft_s"], r["sent_s"], r["end_s"]) for r in requests]
    at, over = POLLED_EVERY, max(end for _, _, end in spans)
    while at < over:
        running = sum(scheduled <= at < end for scheduled, _, end in spans)
        waiting = sum(sent <= at < scheduled for scheduled, sent, _ in spans)
        yield at, 4, "_see_load", LoadSample(worker=WORKER, at=at, running=running, waiting=waiting)
        at += POLLED_EVERY


class RecordingError(ValueError):
    """A file that is no recording, or no calibration: says which, and what is wrong."""


_RECORDING: Final = {"engine": dict, "requests": list, "kv_events": list}
_CALIBRATION: Final = {"isolated_ttft_s": list, "decode": list}


def load(path: Path, parts: Mapping[str, type]) -> dict[str, Any]:
    """Read a recording or a calibration, gzipped or not. Raises RecordingError."""
    try:
        raw = path.read_bytes()
        loaded = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise RecordingError(f"{path}: {error}") from error
    for name, kind in parts.items():
        if not isinstance(loaded, dict) or not isinstance(loaded.get(name), kind):
            what = "an object" if kind is dict else "a list"
            raise RecordingError(
                f"{path}: {name!r} should be there, as {what}: see docs/recordings.md"
            )
    return dict(loaded)


def main(argv: list[str]) -> int:
    """Run `leadsman bench recorded`."""
    parser = argparse.ArgumentParser(prog="leadsman bench recorded", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--calibration", type=Path, help="default: calibration.json beside FILE")
    parser.add_argument("--true-lengths", action="store_true")
    parser.add_argument("--around", type=float, default=0.0, help="share that nobody tells us of")
    parser.add_argument("--worst", type=int, default=0, help="list the so many worst predictions")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    figures = []
    for file in options.files:
        try:
            recording, calibration = _inputs(file, options.calibration)
        except RecordingError as wrong:
            print(f"leadsman bench recorded: {wrong}", file=sys.stderr)
            return 2
        played = Replayed(
            recording, calibration, true_lengths=options.true_lengths, around=options.around
        )
        figured = played.play().figures()
        covered = played.covered / max(1, figured["requests"])
        entry = {"file": str(file), **figured, "covered": covered, "workers": 1}
        figures.append(entry)
        _print(entry)
        for error, request, price, actual, reused in sorted(played.worst, reverse=True, key=_error)[
            : options.worst
        ]:
            print(
                f"  {request}: {price.ttft:.2f} s, was {actual:.2f} s ({error:.2f} off); "
                f"credited {price.cached_tokens}, reused {reused}"
            )
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def _inputs(file: Path, stated: Path | None) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Load a recording, and the calibration that is stated or lies beside it, if any."""
    beside = stated or file.parent / "calibration.json"
    has_calibration = stated is not None or beside.exists()
    return load(file, _RECORDING), load(beside, _CALIBRATION) if has_calibration else None


def _error(row: tuple[Seconds, str, Price, Seconds, int]) -> Seconds:
    return row[0]


def _print(entry: dict[str, Any]) -> None:
    def share(name: str) -> str:
        return "-" if entry[name] is None else f"{100 * entry[name]:.1f} %"

    print(
        f"{entry['file']}: {entry['requests']} requests; within max(0.1 s, 15 %) "
        f"{share('within_relative')}, 1 s {share('within_1s')}, 10 s {share('within_10s')}; "
        f"median error {entry['median_error_s']:.3f} s, p90 {entry['p90_error_s']:.3f} s; "
        f"cache estimates wrong {share('cache_mismatch')}; bound kept {share('covered')}"
    )
