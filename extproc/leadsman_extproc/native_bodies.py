"""Bodies of the engines' own APIs: vLLM's `/inference/v1/generate` and SGLang's `/generate`.

Both take token ids, and neither needs the name of a model: it means the only one that is served.
vLLM's says where in the ids an image stands and by which name the engine keeps it, so its blocks
are keyed as the engine's own events key them. SGLang's takes texts too, one or many, and then
images whose places nobody says.

Source: vLLM 0.32 entrypoints/scale_out/token_in_token_out/protocol.py; SGLang 0.5.23
srt/managers/io_struct.py, GenerateReqInput, and sampling/sampling_params.py.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from leadsman.keys import MultimodalItem
from leadsman.units import Tokens

from leadsman_extproc.body import Api, Body, JsonObject, NotForUs, RawPrompts
from leadsman_extproc.fields import (
    BadFieldError,
    common,
    endings,
    missing,
    raw_prompts,
    text,
    token_ids,
    whole,
)

VLLM_DEFAULT_MAX_TOKENS: Final[Tokens] = 16
SGLANG_DEFAULT_MAX_NEW_TOKENS: Final[Tokens] = 128
_MEDIA: Final = ("image_data", "video_data", "audio_data")


def read_vllm_generate(fields: JsonObject, size: int) -> Body | NotForUs:
    """Read a request of tokens in, tokens out."""
    if (absent := missing(fields, "token_ids")) is not None:
        return absent
    sampling = fields.get("sampling_params")
    sampling = sampling if isinstance(sampling, dict) else {}
    raw = fields.get("content_parts")
    prompt = RawPrompts(
        ids=(token_ids(fields["token_ids"], "token_ids"),),
        items=tuple(_items(fields.get("features"))),
        media=len(raw) if isinstance(raw, list) else 0,
    )
    # None is no limit, as in its SamplingParams; a field that is absent is its default.
    limit = whole(sampling.get("max_tokens", VLLM_DEFAULT_MAX_TOKENS))
    reads = sampling.get("prompt_logprobs") is None
    return Body(
        api=Api.OPENAI,
        prompt=prompt,
        max_tokens=limit,
        reads_cache=reads,
        **common(fields, size) | endings(sampling),
    )


def _items(features: Any) -> Iterator[MultimodalItem]:
    """Name what stands in the ids beside text, by the engine's own hashes."""
    features = features if isinstance(features, dict) else {}
    hashes, places = features.get("mm_hashes"), features.get("mm_placeholders")
    if not isinstance(hashes, dict) or not isinstance(places, dict):
        return
    for modality, names in hashes.items():
        for name, place in zip(names or (), places.get(modality) or (), strict=False):
            offset = whole(place.get("offset")) if isinstance(place, dict) else None
            if isinstance(name, str) and offset is not None:
                yield MultimodalItem(content=name, offset=offset)


def read_sglang_generate(fields: JsonObject, size: int) -> Body | NotForUs:
    """Read a request of the native API: a text, ids, or several of either."""
    name = "text" if fields.get("text") is not None else "input_ids"
    if (absent := missing(fields, name)) is not None:
        return absent
    given = raw_prompts(fields, name)
    if name == "input_ids" and given.texts:
        raise BadFieldError("input_ids must be a list of token ids, or a list of such", name)
    prompt = RawPrompts(texts=given.texts, ids=given.ids, media=sum(map(_count, _media(fields))))
    sampling = fields.get("sampling_params")
    each = sampling if isinstance(sampling, list) else [sampling]
    # Kept from the cache is only what stands behind the first token whose probability is asked for.
    logprobs = fields.get("return_logprob") is True
    start = whole(fields.get("logprob_start_len"))
    told: JsonObject = {"cache_salt": fields.get("cache_salt") or text(fields, "extra_key")}
    return Body(
        api=Api.OPENAI,
        prompt=prompt,
        max_tokens=max((_limit(one) for one in each), default=SGLANG_DEFAULT_MAX_NEW_TOKENS),
        reads_cache=not (logprobs and start is not None and start >= 0),
        **common(fields | told, size) | _endings(each),
    )


def _limit(sampling: Any) -> Tokens:
    limit = whole(sampling.get("max_new_tokens")) if isinstance(sampling, dict) else None
    return SGLANG_DEFAULT_MAX_NEW_TOKENS if limit is None else limit


def _endings(each: Sequence[Any]) -> JsonObject:
    """Read what keeps every answer of several going."""
    told = [endings(one if isinstance(one, dict) else {}, "min_new_tokens") for one in each]
    return {name: min((one[name] for one in told), default=0) for name in endings({})}


def _media(fields: JsonObject) -> Iterator[object]:
    return (fields[name] for name in _MEDIA if fields.get(name) is not None)


def _count(media: object) -> int:
    """Count the items of one kind: one, a list of them, or a list of them for each prompt."""
    return sum(map(_count, media)) if isinstance(media, list) else int(media is not None)
