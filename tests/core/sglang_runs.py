"""Holds the replay of SGLang against a run of SGLang's own scheduler, iteration by iteration.

A run is what `e2e/oracle_sglang/engine.py` writes. What a prompt finds cached comes from the run,
and where prompts share prefixes so does the free memory at the start of each iteration.
"""

from itertools import takewhile

from leadsman.engine import EngineSettings, SglangRules
from leadsman.sequence import Hit, Seq
from leadsman.sglang import SglangReplay


def settings_of(said):
    return EngineSettings(
        model="m",
        version="0.5.23",
        max_num_batched_tokens=said["chunk"] or said["max_prefill"],
        max_num_seqs=said["slots"],
        max_model_len=4096,
        block_size=said["page"],
        num_blocks=said["pages"],
        async_scheduling=said["overlap"],
        sglang=SglangRules(
            max_prefill_tokens=said["max_prefill"],
            chunked_prefill_size=said["chunk"],
            schedule_policy=said["policy"],
            schedule_conservativeness=said["conservativeness"],
            enable_mixed_chunk=said["mixed"],
            enable_priority_scheduling=said["priority"],
            low_priority_first=said["low_first"],
            preemption_threshold=said["threshold"],
        ),
    )


class Compared:
    """One run beside a replay of it; `mismatch` says the first iteration that differs, and how."""

    def __init__(self, run):
        self.run, self.steps, self.retracted = run, 0, 0
        self.shares = run["mode"].startswith(("lpm", "shared"))
        self.page = run["settings"]["page"]
        self.replay = SglangReplay(settings_of(run["settings"])).fork()
        self._todo = list(enumerate(run["requests"]))
        self._present = {}

    def mismatch(self):
        for number, theirs in enumerate(self.run["steps"]):
            while self._todo and self._todo[0][1]["at"] <= number:
                self._add(*self._todo.pop(0))
            self.steps += bool(theirs["prefill"] or theirs["decode"])
            self.retracted += len(theirs["retracted"])
            ours = self._idle() if theirs["idle"] else self._step(theirs)
            expected = {key: theirs[key] for key in ours}
            expected["decode"] = sorted(expected["decode"])
            if ours != expected:
                return {"iteration": number, "ours": ours, "theirs": expected}
        return None

    def _add(self, number, request):
        seq = Seq(request["id"], len(request["prompt"]), -1.0)
        seq.arrival, seq.limit = number, request["max_new"]
        seq.priority, seq.expected = request["priority"], request["output"]
        if self.shares:
            kin = [
                (name, _common(prompt, request["prompt"]) // self.page)
                for name, prompt in self._present.items()
            ]
            seq.kin = sorted(kin, key=lambda one: -one[1])
        self._present[request["id"]] = request["prompt"]
        self.replay.add(seq)

    def _idle(self):
        assert not [*self.replay.decoding, *self.replay.prefilling, *self.replay.waiting]
        self.replay.wake()
        told = {"ratio": self.replay.ratio, "prefill": [], "decode": []}
        return told if self.shares else told | {"free": self.replay.free}

    def _step(self, theirs):
        replay, before = self.replay, dict(self.replay.decoding)
        free = replay.free
        if self.shares:
            free = replay.free = theirs["free"]
        waiting = {seq.id for seq in replay.waiting}
        step = replay.step(lambda seq: self._found(seq, theirs))
        retracted = [seq.id for seq in replay.waiting if seq.id not in waiting]
        decodes = (
            [name for name in before if name not in retracted] if step.features.decodes else []
        )
        return {
            "prefill": [[seq.id, n] for seq, n in step.chunks],
            "decode": sorted(decodes),
            "retracted": retracted,
            "free": free,
            "ratio": replay.ratio,
        }

    def _found(self, seq, theirs):
        return Hit(*theirs["lookups"].get(seq.id, theirs["matches"].get(seq.id, (0, 0))))


def _common(ours, theirs):
    pairs = zip(ours, theirs, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
