"""Runs scenarios of `e2e/oracle_sglang` on the simulated SGLang, told as that folder's engine does.

Nothing is taken from a recorded run: also what each request finds cached, and what is pushed out
for it, is the simulated engine's own.
"""

from unittest.mock import patch

from leadsman_engines.simulated.sequences import SimulatedRequest
from leadsman_engines.simulated.sglang import scheduler as scheduling
from leadsman_engines.simulated.sglang.order import QueueOrder
from leadsman_engines.simulated.sglang.prefill import PrefillPass
from leadsman_engines.simulated.sglang.requests import Live
from leadsman_engines.simulated.sglang.settings import SglangSettings

MOST_PASSES = 5_000


def settings_of(said):
    return SglangSettings(
        model="m",
        page_size=said["page"],
        max_total_num_tokens=said["pages"] * said["page"],
        max_running_requests=said["slots"],
        context_length=4096,
        max_prefill_tokens=said["max_prefill"],
        chunked_prefill_size=said["chunk"],
        schedule_policy=said["policy"],
        schedule_conservativeness=said["conservativeness"],
        enable_mixed_chunk=said["mixed"],
        enable_priority_scheduling=said["priority"],
        schedule_low_priority_values_first=said["low_first"],
        priority_scheduling_preemption_threshold=said["threshold"],
        disable_overlap_schedule=not said["overlap"],
    )


class _Noted(PrefillPass):
    """A pass that notes what was free when it began, and what each found."""

    last = None

    def __init__(self, settings, cache, running, ratio):
        super().__init__(settings, cache, running, ratio)
        _Noted.last = self
        self.free, self.lookups = cache.free_tokens // cache.page, {}

    def add(self, live):
        cache, before = self._cache, self._cache.tree.evictable
        match = cache.match(live, live.tokens - 1)
        cache.tree.lock(match.node)
        unpinned = before - cache.tree.evictable
        cache.tree.unlock(match.node)
        self.lookups[live.id] = [match.pages * cache.page, match.pages - unpinned]
        return super().add(live)


class _NotedOrder(QueueOrder):
    matches = None

    def sort(self, waiting, cache):
        super().sort(waiting, cache)
        _NotedOrder.matches = {
            live.id: [min(live.prefix, live.tokens - 1) // cache.page * cache.page, 0]
            for live in waiting
        }


def simulated_steps(scenario):
    """What a scheduler does in each pass, in the form of a recorded run's steps."""
    with (
        patch.object(scheduling, "PrefillPass", _Noted),
        patch.object(scheduling, "QueueOrder", _NotedOrder),
    ):
        return list(_steps(scenario))


def difference(run):
    """Name the first pass of a recorded run that comes out otherwise, and how; None if none."""
    for number, (ours, theirs) in enumerate(
        zip(simulated_steps(run), map(_comparable, run["steps"]), strict=True)
    ):
        if (ours := _comparable(ours)) != theirs:
            return {"pass": number, "ours": ours, "theirs": theirs}
    return None


def _comparable(step):
    """A step without what depends on nothing: the order in a batch of those who decode."""
    return step | {"decode": sorted(step["decode"]), "matches": None}


def _steps(scenario):
    settings = settings_of(scenario["settings"])
    scheduler = scheduling.SglangScheduler(settings)
    todo = list(scenario["requests"])
    for number in range(MOST_PASSES):
        while todo and todo[0]["at"] <= number:
            scheduler.add(_live(todo.pop(0), settings.page_size))
        step = _pass(scheduler, overlap=not settings.disable_overlap_schedule)
        scheduler.check()
        yield step
        if step["idle"] and not todo:
            return
    raise AssertionError("requests are left over")


def _live(request, page):
    prompt = request["prompt"]
    asked = SimulatedRequest(
        id=request["id"],
        prompt_tokens=len(prompt),
        prompt_hashes=[hash(tuple(prompt[: n * page])) for n in range(1, len(prompt) // page + 1)],
        output_tokens=request["output"],
        max_tokens=request["max_new"],
        priority=request["priority"],
    )
    return Live(asked, arrival=0.0, room=4096)


def _pass(scheduler, *, overlap):
    cache, _Noted.last, _NotedOrder.matches = scheduler.cache, None, {}
    free = cache.free_tokens // cache.page
    launched = scheduler.schedule()
    told = {"prefill": [], "decode": [], "retracted": [one.id for one in scheduler.retracted]}
    if launched is not None:
        rides, parts = set(launched.decoding), iter(launched.chunks)
        for live in launched.reqs:
            if launched.mode == "prefill" and live not in rides:
                told["prefill"].append([live.id, next(parts)[0]])
            else:
                told["decode"].append(live.id)
    had_results = overlap and len(scheduler.launched) > (launched is not None)
    if had_results or (launched is not None and not overlap):
        scheduler.process()
    is_idle = launched is None and not had_results and scheduler.is_idle
    if is_idle:
        scheduler.idle()
    noted = _Noted.last
    return told | {
        "free": free if noted is None else noted.free,
        "lookups": {} if noted is None else noted.lookups,
        "matches": _NotedOrder.matches,
        "idle": is_idle,
        "ratio": scheduler.ratio,
    }
