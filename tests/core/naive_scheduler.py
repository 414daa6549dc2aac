"""vLLM V1's scheduler as its rules read, one request and one physical block at a time: an oracle.

Nothing is summed or skipped: every running request is visited in the order of its admission, every
block is an object in a free queue that is consumed from its head. Tokens of a prompt are the values
of `prompt`; generated ones are unlike all others.
"""

from dataclasses import dataclass, field


@dataclass(eq=False)
class Block:
    key: tuple | None = None
    holders: int = 0


@dataclass(eq=False, kw_only=True, repr=False)
class NaiveRequest:
    """`output` tokens are generated in all, and the engine knows so, by max_tokens."""

    id: str
    prompt: tuple
    output: int
    visible_at: float = 0.0
    priority: int = 0
    arrival: int = 0
    reads_cache: bool = True
    tokens: list = field(default_factory=list)
    computed: int = 0
    placeholders: int = 0
    generated: int = 0
    blocks: list = field(default_factory=list)
    cached: int | None = None
    is_running: bool = False
    is_decoding: bool = False
    is_over: bool = False

    def __post_init__(self):
        self.tokens = list(self.prompt)


@dataclass
class NaiveStep:
    tokens: dict = field(default_factory=dict)
    prefills: list = field(default_factory=list)
    decodes: list = field(default_factory=list)
    admitted: list = field(default_factory=list)
    preempted: list = field(default_factory=list)
    lookups: dict = field(default_factory=dict)
    finals: list = field(default_factory=list)


class NaiveScheduler:
    def __init__(self, settings):
        self.settings = settings
        self.running, self.waiting = [], []
        self.queue = [Block() for _ in range(settings.num_blocks)]
        self.by_key = {}
        self.in_flight = []

    @property
    def free(self):
        return len(self.queue)

    def add(self, request):
        self.waiting.append(request)
        self._order_waiting()

    def step(self, clock):
        """Schedule a step that starts at `clock`; process it, or the one before it if async."""
        step = NaiveStep()
        left = self._serve_running(step)
        if not step.preempted:
            self._admit(step, left, clock)
        for request, count in step.tokens.items():
            request.computed += count
            kind = step.decodes if request.is_decoding else step.prefills
            kind.append((request.id, count))
            if request.computed >= len(request.tokens) + request.placeholders:
                request.placeholders += 1
                if not request.is_decoding:
                    step.finals.append(request.id)
                request.is_decoding = True
        self.in_flight.append(step)
        if not self.settings.async_scheduling:
            self._process(self.in_flight.pop())
        elif len(self.in_flight) > 1:
            self._process(self.in_flight.pop(0))
        return step

    def drain(self):
        """Process what is still in flight: the engine has nothing more to schedule."""
        while self.in_flight:
            self._process(self.in_flight.pop(0))

    def _serve_running(self, step):
        left = self.settings.max_num_batched_tokens
        threshold = self._threshold()
        index = 0
        while index < len(self.running):
            request = self.running[index]
            index += 1
            if request.generated + request.placeholders >= request.output:
                continue
            count = len(request.tokens) + request.placeholders - request.computed
            count = min(count, left, threshold or count)
            count = self._cut(request, request.computed, count)
            if count == 0:
                # A prompt that was cut where a block ends left some budget to who ran behind it;
                # with its next chunk it may take all.
                shared = not request.is_decoding or self.settings.aligns_chunks
                assert shared, "whoever runs behind a prefill was given a share"
                continue
            while not self._allocate(request, request.computed + count):
                victim = self._victim()
                if self.running.index(victim) < index:
                    index -= 1
                left += step.tokens.pop(victim, 0)
                self._preempt(victim)
                step.preempted.append(victim.id)
                if victim is request:
                    break
            if request.is_running:
                step.tokens[request] = count
                left -= count
            elif self.settings.policy == "fcfs":
                break
        return left

    def _admit(self, step, left, clock):
        settings, threshold = self.settings, self._threshold()
        while self.waiting and left > 0 and len(self.running) < settings.max_num_seqs:
            request = self.waiting[0]
            if request.visible_at > clock:
                break
            hits = self._find(request)
            step.lookups[request.id] = (
                len(hits) * settings.block_size,
                sum(block.holders > 0 for block in hits),
            )
            start = len(hits) * settings.block_size
            count = min(len(request.tokens) - start, threshold or len(request.tokens))
            if count > left and not settings.enable_chunked_prefill:
                break
            count = self._cut(request, start, min(count, left))
            if count == 0:
                break
            spare = int(settings.watermark * (settings.num_blocks + 1)) if self.running else 0
            reach = len(request.tokens) if settings.reserve_full_isl else start + count
            fresh = self._blocks(reach) - len(hits) + sum(not block.holders for block in hits)
            if fresh + spare > self.free:
                break
            self.waiting.pop(0)
            for block in hits:
                if not block.holders:
                    self.queue.remove(block)
                block.holders += 1
            request.blocks, request.computed = hits, start
            if request.cached is None:
                request.cached = start
            assert self._allocate(request, start + count)
            request.is_running = True
            self.running.append(request)
            step.tokens[request] = count
            step.admitted.append(request.id)
            left -= count

    def _process(self, step):
        for request in step.tokens:
            if request.is_over or (
                request.id in dict(step.prefills) and request.id not in step.finals
            ):
                continue
            request.placeholders = max(0, request.placeholders - 1)
            request.generated += 1
            request.tokens.append((request.id, request.generated))
            if self.settings.async_scheduling and request.is_running:
                self._name(request, request.computed - request.placeholders)
            if request.generated >= request.output:
                request.is_over = True
                if request.is_running:
                    self.running.remove(request)
                    self._give_back(request)
                else:
                    self.waiting.remove(request)

    def _cut(self, request, start, count):
        """Shorten a chunk to the last token that it may end with, passing none it must stop at."""
        settings, size = self.settings, self.settings.block_size
        known, end = len(request.tokens), start + count
        last = max(len(request.prompt), known - 1)
        if not settings.aligns_chunks or start >= last:
            return count
        stops = {(known - 1) // size * size}
        if start % size:
            stops.add(start + size - start % size)
        reached = [e for e in range(start + 1, end + 1) if not any(start < s < e for s in stops)]
        allowed = [e for e in reached if e >= last or e % size == 0]
        most = settings.max_num_batched_tokens
        most = min(most, settings.long_prefill_token_threshold or most)
        if not allowed and size > most:
            allowed = reached
        return max(allowed, default=start) - start

    def _threshold(self):
        several = len(self.running) + len(self.waiting) > 1
        return self.settings.long_prefill_token_threshold if several else None

    def _victim(self):
        if self.settings.policy == "priority":
            return max(self.running, key=lambda one: (one.priority, one.arrival))
        return self.running[-1]

    def _preempt(self, victim):
        self.running.remove(victim)
        self._give_back(victim)
        victim.computed = victim.placeholders = 0
        victim.is_decoding = False
        self.waiting.insert(0, victim)
        self._order_waiting()

    def _order_waiting(self):
        if self.settings.policy == "priority":
            self.waiting.sort(key=lambda one: (one.priority, one.arrival))

    # -- blocks ------------------------------------------------------------------------------------

    def _blocks(self, tokens):
        return -(-tokens // self.settings.block_size)

    def _key(self, request, number):
        return tuple(request.tokens[: (number + 1) * self.settings.block_size])

    def _find(self, request):
        hits = []
        if not (self.settings.enable_prefix_caching and request.reads_cache):
            return hits
        for number in range((len(request.tokens) - 1) // self.settings.block_size):
            copies = self.by_key.get(self._key(request, number))
            if not copies:
                break
            hits.append(copies[0])
        return hits

    def _allocate(self, request, end):
        missing = self._blocks(end) - len(request.blocks)
        if missing > self.free:
            return False
        for _ in range(missing):
            block = self.queue.pop(0)
            self._forget(block)
            block.holders = 1
            request.blocks.append(block)
        self._name(request, min(end, len(request.tokens)))
        return True

    def _name(self, request, tokens):
        if not self.settings.enable_prefix_caching:
            return
        for number in range(tokens // self.settings.block_size):
            block = request.blocks[number]
            if block.key is None:
                block.key = self._key(request, number)
                self.by_key.setdefault(block.key, []).append(block)

    def _forget(self, block):
        if block.key is not None:
            copies = self.by_key[block.key]
            copies.remove(block)
            if not copies:
                del self.by_key[block.key]
            block.key = None

    def _give_back(self, request):
        request.is_running = False
        for block in reversed(request.blocks):
            block.holders -= 1
            if not block.holders:
                if block.key is None:
                    self.queue.insert(0, block)
                else:
                    self.queue.append(block)
        request.blocks = []
