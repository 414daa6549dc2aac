"""Pairs of model and accelerator, from public specifications.

Shapes are those of each model's card and config.json; peaks are the vendors' data sheets (dense, no
structured sparsity). The shares of the peaks that serving reaches are stated here: 40-60 % of the
matrix peak for long prefills, 70-80 % of the memory bandwidth, as published vLLM profiles show.
Budgets and sequence limits are vLLM's own defaults by accelerator memory, unless a docstring says
otherwise. KV blocks = (memory x utilisation - weights - activations) / bytes of a block.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from leadsman_engines.simulated.hardware import Attention, Device, Hardware, Model
from leadsman_engines.simulated.settings import SimulatedSettings
from leadsman_engines.simulated.sglang.settings import SglangSettings

GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One pair: settings as that engine would report them, and the hardware below it."""

    name: str
    about: str
    settings: SimulatedSettings
    hardware: Hardware

    @property
    def sglang(self) -> SglangSettings:
        """The same pair served by SGLang: pages of 16 tokens, a chunk by the device's memory."""
        own, memory = self.settings, self.hardware.device.memory
        chunk = 2048 if memory < 20 * GB else 4096 if memory < 60 * GB else 8192
        return SglangSettings(
            model=own.model,
            page_size=16,
            max_total_num_tokens=own.num_blocks * own.block_size,
            max_running_requests=own.max_num_seqs,
            context_length=own.max_model_len,
            chunked_prefill_size=chunk,
        )


def _dense(heads: int, head_dim: int, layers: int, kv_bytes: float) -> Attention:
    return Attention(pair_flops=4.0 * layers * heads * head_dim, read_bytes=kv_bytes)


def _blocks(model: Model, device: Device, block_size: int, utilisation: float = 0.9) -> int:
    activations = 3 * GB * device.count
    room = device.memory * device.count * utilisation - model.total_bytes - activations
    return int(room / (model.kv_bytes * block_size))


def _h100(count: int, *, fp8: bool) -> Device:
    """H100 SXM5 80 GB. 989 TFLOP/s BF16, 1979 FP8, 3.35 TB/s, NVLink 450 GB/s each way."""
    return Device(
        name="NVIDIA H100 80GB HBM3", count=count, flops=1979e12 if fp8 else 989e12,
        bandwidth=3350 * GB, memory=80 * GB, link=450 * GB * 0.7 if count > 1 else None,
        compute_share=0.45, step_overhead=0.0045,
    )  # fmt: skip


def llama_8b_a100() -> Preset:
    """Llama-3.1-8B-Instruct, BF16, on one A100 SXM 80 GB (312 TFLOP/s, 2.04 TB/s).

    8.03e9 parameters, 32 layers, hidden 4096, 32 query heads, 8 KV heads of 128: 131,072 bytes of
    KV a token. vLLM leaves an A100 at 2,048 tokens and 256 sequences.
    """
    kv = 2.0 * 32 * 8 * 128 * 2
    model = Model(
        name="meta-llama/Llama-3.1-8B-Instruct", layers=32, hidden=4096, shared_parameters=8.03e9,
        attention=_dense(32, 128, 32, kv), kv_bytes=kv,
    )  # fmt: skip
    device = Device(
        name="NVIDIA A100-SXM4-80GB", flops=312e12, bandwidth=2039 * GB, memory=80 * GB,
        compute_share=0.58, step_overhead=0.005,
    )  # fmt: skip
    settings = SimulatedSettings(
        model=model.name, max_num_batched_tokens=2048, max_num_seqs=256, max_model_len=131072,
        block_size=16, num_blocks=_blocks(model, device, 16),
    )  # fmt: skip
    return _preset("llama-3.1-8b-a100", llama_8b_a100, settings, Hardware(model, device))


def llama_70b_4xh100() -> Preset:
    """Llama-3.1-70B-Instruct, BF16, on four H100 by tensor parallelism.

    70.6e9 parameters, 80 layers, hidden 8192, 64 query heads, 8 KV heads of 128: 327,680 bytes of
    KV a token over the four. 8,192 tokens and, so that KV suffices, 128 sequences.
    """
    kv = 2.0 * 80 * 8 * 128 * 2
    model = Model(
        name="meta-llama/Llama-3.1-70B-Instruct", layers=80, hidden=8192, shared_parameters=70.6e9,
        attention=_dense(64, 128, 80, kv), kv_bytes=kv,
    )  # fmt: skip
    device = _h100(4, fp8=False)
    settings = SimulatedSettings(
        model=model.name, max_num_batched_tokens=8192, max_num_seqs=128, max_model_len=131072,
        block_size=16, num_blocks=_blocks(model, device, 16),
    )  # fmt: skip
    return _preset("llama-3.1-70b-4xh100", llama_70b_4xh100, settings, Hardware(model, device))


def qwen3_30b_a3b_h100() -> Preset:
    """Qwen3-30B-A3B-Instruct-2507-FP8, a mixture of experts, on one H100.

    30.5e9 parameters of which 3.3e9 active: 128 experts, 8 a token, 48 layers, hidden 2048, 32
    query heads, 4 KV heads of 128: 98,304 bytes of KV a token. Experts keep small
    matrices, so a smaller share of the FP8 peak is reached.
    """
    kv = 2.0 * 48 * 4 * 128 * 2
    model = Model(
        name="Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", layers=48, hidden=2048,
        shared_parameters=1.53e9, expert_parameters=29.0e9, experts=128, experts_per_token=8,
        weight_bytes=1.0, attention=_dense(32, 128, 48, kv), kv_bytes=kv,
    )  # fmt: skip
    base = _h100(1, fp8=True)
    device = Device(
        name=base.name, flops=base.flops, bandwidth=base.bandwidth, memory=base.memory,
        compute_share=0.18, attention_share=0.2, step_overhead=0.006, tile=128,
    )  # fmt: skip
    settings = SimulatedSettings(
        model=model.name, max_num_batched_tokens=8192, max_num_seqs=256, max_model_len=262144,
        block_size=16, num_blocks=_blocks(model, device, 16),
    )  # fmt: skip
    return _preset("qwen3-30b-a3b-h100", qwen3_30b_a3b_h100, settings, Hardware(model, device))


def deepseek_v4_flash_4xh100() -> Preset:
    """DeepSeek-V4-Flash, sparse attention, on four H100: about 30 N + 37 N^2 s, N in millions.

    284e9 parameters of which 13e9 active: 256 experts, 6 a token, 43 layers, hidden 4096, weights
    in FP4 and FP8. Attention is dense in no layer: 21 layers pool four positions to one, score
    those with 64 index heads of 128 and attend to 512; 20 pool 128 positions to one and attend to
    all; a window of 128 everywhere. So a pair costs 21 x 64 x 128 x 2 / 4 to score and
    20 x 64 x 512 x 4 / 128 to attend. Expert and index kernels reach small shares of the FP8 peak.
    """
    layers, heads, head_dim = 43, 64, 512
    scoring = 21 * 64 * 128 * 2 / 4
    pooled = 20 * heads * head_dim * 4 / 128
    kv = 21 * (584 / 4 + 132 / 4) + 20 * 584 / 128
    model = Model(
        name="deepseek-ai/DeepSeek-V4-Flash", layers=layers, hidden=4096, shared_parameters=6.5e9,
        expert_parameters=277.5e9, experts=256, experts_per_token=6, weight_bytes=0.56,
        kv_bytes=kv * 4,
        attention=Attention(
            pair_flops=scoring + pooled, read_bytes=21 * 132 / 4 + 20 * 584 / 128, selected=512 * 4,
            selected_pair_flops=21 * heads * head_dim * 4 / 4, selected_read_bytes=21 * 584 / 4,
        ),
    )  # fmt: skip
    base = _h100(4, fp8=True)
    device = Device(
        name=base.name, count=4, flops=base.flops, bandwidth=base.bandwidth, memory=base.memory,
        link=base.link, compute_share=0.136, attention_share=0.18, step_overhead=0.008, tile=128,
    )  # fmt: skip
    settings = SimulatedSettings(
        model=model.name, max_num_batched_tokens=8192, max_num_seqs=256, max_model_len=1048576,
        block_size=256, num_blocks=_blocks(model, device, 256),
    )  # fmt: skip
    return _preset(
        "deepseek-v4-flash-4xh100", deepseek_v4_flash_4xh100, settings, Hardware(model, device)
    )


def qwen_05b_a10g() -> Preset:
    """Qwen2.5-0.5B-Instruct, BF16, on one A10G (70 TFLOP/s, 600 GB/s): the small one.

    0.494e9 parameters, 24 layers, hidden 896, 14 query heads, 2 KV heads of 64: 12,288 bytes of KV
    a token. Set small on purpose: 512 tokens a step, four sequences, an eighth of the memory.
    """
    kv = 2.0 * 24 * 2 * 64 * 2
    model = Model(
        name="Qwen/Qwen2.5-0.5B-Instruct", layers=24, hidden=896, shared_parameters=0.494e9,
        attention=_dense(14, 64, 24, kv), kv_bytes=kv,
    )  # fmt: skip
    device = Device(
        name="NVIDIA A10G", flops=70e12, bandwidth=600 * GB, memory=24 * GB, compute_share=0.4,
        attention_share=0.25, step_overhead=0.006,
    )  # fmt: skip
    settings = SimulatedSettings(
        model=model.name, max_num_batched_tokens=512, max_num_seqs=4, max_model_len=32768,
        block_size=16, num_blocks=6400,
    )  # fmt: skip
    return _preset("qwen2.5-0.5b-a10g", qwen_05b_a10g, settings, Hardware(model, device))


def mistral_7b_v100() -> Preset:
    """Mistral-7B-Instruct-v0.3, FP16, on one V100 SXM2 32 GB (125 TFLOP/s, 900 GB/s): the old one.

    7.25e9 parameters, 32 layers, hidden 4096, 32 query heads, 8 KV heads of 128. No bf16, no flash
    attention of the newer kind: small shares. vLLM 0.32, and no asynchronous scheduling.
    """
    kv = 2.0 * 32 * 8 * 128 * 2
    model = Model(
        name="mistralai/Mistral-7B-Instruct-v0.3", layers=32, hidden=4096,
        shared_parameters=7.25e9, attention=_dense(32, 128, 32, kv), kv_bytes=kv,
    )  # fmt: skip
    device = Device(
        name="Tesla V100-SXM2-32GB", flops=125e12, bandwidth=900 * GB, memory=32 * GB,
        compute_share=0.45, attention_share=0.15, bandwidth_share=0.7, step_overhead=0.011,
        tile=128,
    )  # fmt: skip
    settings = SimulatedSettings(
        model=model.name, version="0.32.0", max_num_batched_tokens=2048, max_num_seqs=64,
        max_model_len=32768, block_size=32, num_blocks=_blocks(model, device, 32),
        async_scheduling=False,
    )  # fmt: skip
    return _preset("mistral-7b-v100", mistral_7b_v100, settings, Hardware(model, device))


def _preset(
    name: str, source: Callable[[], Preset], settings: SimulatedSettings, hardware: Hardware
) -> Preset:
    return Preset(name=name, about=source.__doc__ or "", settings=settings, hardware=hardware)


def presets() -> Mapping[str, Preset]:
    """Make every preset, by name."""
    made = (
        llama_8b_a100(), llama_70b_4xh100(), qwen3_30b_a3b_h100(), deepseek_v4_flash_4xh100(),
        qwen_05b_a10g(), mistral_7b_v100(),
    )  # fmt: skip
    return {preset.name: preset for preset in made}
