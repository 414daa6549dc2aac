"""From rows of a trace to requests with block keys, and the fleet's capacity for them."""

from collections.abc import Iterable, Iterator
from itertools import islice
from random import Random

from leadsman.keys import block_keys, namespace_seed
from leadsman.request import Request
from leadsman.units import RequestId, Seconds, Tokens
from leadsman_engines.simulated.make import engine_of
from leadsman_engines.simulated.sequences import SimulatedRequest

from leadsman_bench.conversation import ConversationModel, generate
from leadsman_bench.prompts import token_ids
from leadsman_bench.scenario import MODEL, Wishes, WorkerSpec, wishes
from leadsman_bench.traces import TraceRequest
from leadsman_bench.virtual import Offer, request_id

SEED = namespace_seed(secret=b"virtual", model=MODEL)
BACKLOG = 320
"""Requests that capacity is measured on, a worker: more than any holds at once."""

STRAGGLERS = 0.05
"""Share of a backlog whose ends are not waited for: a batch that empties says nothing of load."""


def offers(
    rows: Iterable[TraceRequest], *, block_sizes: Iterable[Tokens], rng: Random
) -> Iterator[Offer]:
    """Turn rows into offers, in their order; draws what each caller asks for from `rng`."""
    sizes = sorted(set(block_sizes))
    for number, row in enumerate(rows):
        yield offer(row, wishes(row, rng), name=request_id(number), block_sizes=sizes)


def offer(
    row: TraceRequest, wanted: Wishes, *, name: RequestId, block_sizes: Iterable[Tokens]
) -> Offer:
    """Turn one row into an offer, with the keys of its blocks at each of these sizes."""
    tokens = token_ids(row)
    request = Request(
        id=name,
        model=MODEL,
        prompt_tokens=row.input_tokens,
        arrived_at=row.at,
        keys={size: block_keys(tokens, size, SEED) for size in set(block_sizes)},
        max_tokens=wanted.max_tokens,
        max_queue_wait=wanted.max_queue_wait,
    )
    return Offer(request=request, output_tokens=row.output_tokens, former_output=row.former_output)


def capacity(specs: Iterable[WorkerSpec], model: ConversationModel, *, seed: int) -> list[float]:
    """Measure each worker's requests a second under a backlog of conversations.

    From an empty cache to the last but a few ends: what turns find cached there is about what they
    find in a fleet, where thousands of other requests come between two turns. (The middle of a
    backlog runs up to twice as fast: its prompts were prefilled before, its turns follow at once.)
    A worker that is too small for a prompt gets the others.
    """
    found: list[float] = []
    for number, spec in enumerate(specs):
        rows = generate(model, requests_per_s=1.0, seed=seed + number)
        fitting = (row for row in rows if row.input_tokens + 4096 < spec.settings.max_model_len)
        found.append(measured_capacity(spec, islice(fitting, BACKLOG), seed=seed))
    return found


def measured_capacity(spec: WorkerSpec, rows: Iterable[TraceRequest], *, seed: int) -> float:
    """Measure one engine's requests a second while it works off these rows, all there at once."""
    engine = engine_of(spec.settings, spec.hardware, Random(f"{seed}/{spec.name}/capacity"))
    for number, row in enumerate(rows):
        keys = block_keys(token_ids(row), spec.settings.block_size, SEED)
        engine.submit(
            SimulatedRequest(
                id=str(number),
                prompt_tokens=row.input_tokens,
                prompt_hashes=keys.tolist(),
                output_tokens=row.output_tokens,
            ),
            0.0,
        )
    ends: list[Seconds] = []
    while (moment := engine.next_time()) is not None:
        for output in engine.advance(moment + 60.0):
            ends += [output.ended_at] * len(output.finished)
    counted = len(ends) - int(STRAGGLERS * len(ends))
    return counted / ends[counted - 1]
