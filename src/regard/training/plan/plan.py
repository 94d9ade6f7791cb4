"""`plan`: the memory of each device and the time of a step, from one device to a thousand.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (2020), sections 5 and 7.
https://arxiv.org/abs/1910.02054
Shoeybi et al., "Megatron-LM" (2019), section 3, for tensor parallelism. https://arxiv.org/abs/1909.08053
Williams et al., "Roofline" (2009), for the time of an operation. https://doi.org/10.1145/1498765.1498785
Chowdhery et al., "PaLM" (2022), appendix B, for the utilization of model FLOPs. https://arxiv.org/abs/2204.02311

What a step stores and computes is traced (`trace.py`); how fast it is follows from the device (`accelerators.py`).
The formulas, and how far they are from measurements, are in `docs/scale.md`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from regard.errors import ConfigError
from regard.models.family import ModelConfig, find_family, read_model_config
from regard.models.presets import find_preset
from regard.nn.losses import logits_chunk
from regard.settings import merge_tables, nearest, require_table
from regard.training.optimizers import OPTIMIZER_TRAITS, OptimizerName
from regard.training.plan.accelerators import Accelerator, Product, find_accelerator
from regard.training.plan.trace import StepTrace, Weights, Work, has_blocks, kv_cache_bytes, trace_step

Sharding = Literal["none", "full"]

NUM_DEVICES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_BATCH_TOKENS = {True: 8_192, False: 1_024}
"""Of a batch on each device, on a GPU and on a CPU: the defaults of language models."""
_MOST_STEPS = 128
"""A model that is trained position by position is traced that way, which takes a second for ten positions."""
_FLOAT32, _BFLOAT16 = 4, 2
_STATES: dict[OptimizerName, int] = {
    "adamw": 2, "adam": 2, "muon": 2, "sgd": 0, "momentum": 1, "nesterov": 1, "adagrad": 1, "rmsprop": 1
}  # fmt: skip
"""Numbers that an optimizer stores for each weight; Muon one for a matrix, and two for the others, which have AdamW."""
_NEWTON_SCHULZ_STEPS = 5
_FUSED = 0.5
"""The share of the memory traffic of plain operations that is left when torch.compile has fused them."""
_DISPATCH = 4.6e-6
"""Seconds that a CPU core takes to start an operation, where no CUDA graph does."""
_LATENCY = 20e-6
"""Seconds that a collective operation takes at least, for each doubling of the number of devices."""
_COLLECTIVE_SHARE = 0.8
"""The share of a link's bandwidth that collective operations reach."""


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes on each device."""

    weights: int
    optimizer: int
    ema: int
    gradients: int
    activations: int
    loss: int
    """Logits of a part of the batch, and the gradients of the hidden states and of the output projection."""
    copies: int
    """Weights in the precision of products, and, where weights are sharded, those that are gathered."""
    evaluation: int
    """The whole copy of sharded weights that evaluates; 0 where each device has them in any case."""
    peak: int
    """At the moment at which most is stored: not everything is stored at once."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step."""

    compute: float
    """Of operations that are limited by products."""
    memory: float
    """Of operations that are limited by reading and writing."""
    communication: float
    """All of it, also that which is hidden behind computation."""
    exposed: float
    """Of communication that the devices wait for."""
    total: float
    limit: str
    """What takes most: compute, memory, communication, or host (starting operations)."""


@dataclass(frozen=True)
class PlanRow:
    """The plan for one number of devices."""

    devices: int
    memory: DeviceMemory
    fits: bool
    time: StepTime
    batch_tokens: int
    """Of all devices together: `train.batch_tokens`."""
    tokens_per_second: float
    flops_utilization: float
    """Model FLOPs a second as a share of what the data sheet states."""
    seconds: float | None
    """Of training on all tokens; None where their number is not given."""


@dataclass(frozen=True)
class Plan:
    """What `plan` returns; `rows` are in the order of the numbers of devices."""

    model: str
    parameters: int
    hardware: str
    device: str
    usable: int
    """Bytes of memory that tensors can use."""
    measured: str
    """Where the shares of the data sheet's rates are from that are assumed."""
    precision: Product
    sharding: Sharding
    tensor_parallel: int
    optimizer: OptimizerName
    activation_checkpointing: bool
    compiled: bool
    rows_per_device: int
    context: int
    flops_per_token: float
    """Of the products and the attention of forward and backward."""
    kv_cache: int | None
    """Bytes for each text of the length `context` in generation."""
    inference_weights: int
    unit: str
    """What is counted as tokens."""
    rows: tuple[PlanRow, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "rows": [asdict(row) for row in self.rows], "notes": list(self.notes)}


def plan(
    model: str,
    *,
    gpus: int | Sequence[int] = NUM_DEVICES,
    hardware: str = "h200",
    settings: Mapping[str, Any] | None = None,
    batch_tokens: int | None = None,
    context: int | None = None,
    vocab_size: int = 32_000,
    sharding: str = "none",
    tensor_parallel: int = 1,
    optimizer: str = "adamw",
    precision: str | None = None,
    activation_checkpointing: bool = False,
    ema: bool = True,
    compile: bool = False,
    network: float | None = None,
    tokens: float | None = None,
) -> Plan:
    """Compute the memory of each device and the time of a step, without any of these devices.

    Args:
        model: A preset, with or without a size.
        gpus: Numbers of devices: GPUs, or processes of a CPU.
        hardware: An entry of `ACCELERATORS`.
        settings: Settings over those of the preset: `{"model": {"num_layers": 48}}`.
        batch_tokens: Tokens of a batch on each device; images count their positions.
        context: Tokens of a row, and of a text in generation.
        vocab_size: Tokens of the vocabulary.
        sharding: none: each device has all weights; full: weights, gradients and optimizer state are divided.
        tensor_parallel: Devices of a node that share the layers of one model.
        optimizer: One of `train.optimizer`.
        precision: bfloat16 or float32, of matrix products. Unset: bfloat16 on a GPU.
        activation_checkpointing: Keep only the inputs of blocks, and compute the rest again.
        ema: Whether an average of the weights is kept.
        compile: Whether `torch.compile` is used.
        network: Gigabits a second between nodes, for each device. Unset: that of the hardware.
        tokens: Tokens of the whole training.

    Example:
        >>> plan("gpt2-base", gpus=8, sharding="full", context=256).rows[0].fits
        True
    """
    accelerator = find_accelerator(hardware)
    if network is not None:
        accelerator = accelerator.with_network(network)
    numbers = [gpus] if isinstance(gpus, int) else list(gpus)
    product: Product = _one_of(precision or ("bfloat16" if accelerator.is_gpu else "float32"), Product, "precision")
    kind: Sharding = _one_of(sharding, Sharding, "sharding")
    name, config = _read_model(model, settings or {})
    work = _Work(
        accelerator=accelerator,
        precision=product,
        sharding=kind,
        tensor_parallel=tensor_parallel,
        optimizer=_one_of(optimizer, OptimizerName, "optimizer"),
        has_ema=ema,
        is_compiled=compile,
        has_graphs=accelerator.is_gpu and config.can_use_cuda_graphs and OPTIMIZER_TRAITS[optimizer].is_capturable,  # pyright: ignore[reportArgumentType]  checked above
    )
    _check(numbers, work, config, vocab_size=vocab_size, tokens=tokens)
    _check_blocks(config, {"sharding": sharding == "full", "activation_checkpointing": activation_checkpointing})
    length = _length(config, context)
    rows = _num_rows(batch_tokens, length, is_gpu=accelerator.is_gpu)
    trace = trace_step(
        config,
        vocab_size=vocab_size,
        rows=rows,
        length=length,
        precision=product,
        is_gpu=accelerator.is_gpu,
        is_checkpointed=activation_checkpointing,
    )
    plain = trace
    if activation_checkpointing:  # what is computed again is no work of the model
        plain = trace_step(config, vocab_size=vocab_size, rows=rows, length=length, precision=product,
                           is_gpu=accelerator.is_gpu)  # fmt: skip
    model_flops = _flops(plain) + sum(_loss_work(plain, product)[:1])
    is_image = config.input_kind == "pixels"
    return Plan(
        model=name,
        parameters=trace.weights.total,
        hardware=accelerator.name,
        device=accelerator.title,
        usable=accelerator.usable,
        measured=accelerator.measured,
        precision=product,
        sharding=kind,
        tensor_parallel=tensor_parallel,
        optimizer=work.optimizer,
        activation_checkpointing=activation_checkpointing,
        compiled=compile,
        rows_per_device=rows,
        context=length,
        flops_per_token=model_flops / trace.tokens,
        kv_cache=kv_cache_bytes(config, length, precision=product),
        inference_weights=trace.weights.total * _width(product),
        unit="positions" if is_image else "tokens",
        rows=tuple(_row(trace, work, number, model_flops, tokens) for number in numbers),
        notes=tuple(_notes(config, trace)),
    )


@dataclass(frozen=True)
class _Work:
    """How a model is trained."""

    accelerator: Accelerator
    precision: Product
    sharding: Sharding
    tensor_parallel: int
    optimizer: OptimizerName
    has_ema: bool
    is_compiled: bool
    has_graphs: bool
    """Whether one device can run its steps as CUDA graphs; several communicate within a step."""


def _one_of(value: str, kinds: Any, what: str) -> Any:
    known = get_args(kinds)
    if value not in known:
        raise ConfigError(f"no {what} is called {value!r}{nearest(value, known)}")
    return value


def _read_model(name: str, settings: Mapping[str, Any]) -> tuple[str, ModelConfig]:
    for section in settings:
        if section != "model":
            raise ConfigError(f"a plan takes settings of [model], got {section}; what concerns training is an option")
    full_name, values = find_preset(name)
    own = require_table(settings.get("model", {}), "model")
    return full_name, read_model_config(merge_tables(values, own))


def _check(numbers: Sequence[int], work: _Work, config: ModelConfig, *, vocab_size: int, tokens: float | None) -> None:
    shared, node = work.tensor_parallel, work.accelerator.node_size
    if vocab_size < 1:
        raise ConfigError(f"vocab_size must be at least 1, got {vocab_size}")
    if tokens is not None and not (tokens > 0 and math.isfinite(tokens)):
        raise ConfigError(f"tokens must be a number above 0, got {tokens:g}")
    if shared < 1 or node % shared:
        raise ConfigError(f"tensor_parallel must divide the {node} devices of a node, got {shared}")
    if shared > 1:
        heads = getattr(config, "num_heads", None)
        if heads is None:
            raise ConfigError(
                f"tensor parallelism divides attention and feed-forward networks: {config.family} has none"
            )
        shared_heads = getattr(config, "num_key_value_heads", None) or heads
        if shared_heads % shared:
            raise ConfigError(f"tensor_parallel must divide the {shared_heads} key/value heads, got {shared}")
    if not numbers or min(numbers) < 1:
        raise ConfigError(f"a plan needs at least one device, got {', '.join(map(str, numbers)) or 'none'}")
    for number in numbers:
        if number % shared:
            raise ConfigError(f"the number of devices must be a multiple of tensor_parallel={shared}, got {number}")


def _check_blocks(config: ModelConfig, options: Mapping[str, bool]) -> None:
    for name, is_set in options.items():
        if is_set and not has_blocks(config):
            raise ConfigError(
                f"{name} is for models with the blocks of a Transformer, which {config.family} does not have"
            )


def _length(config: ModelConfig, context: int | None) -> int:
    if context is not None and context < 1:
        raise ConfigError(f"context must be at least 1, got {context}")
    if config.input_kind == "pixels":
        positions = find_family(config.family).default_shape.num_positions
        if context not in (None, positions):
            raise ConfigError(f"an image has {positions} positions here: context must be left out, got {context}")
        return positions
    longest = 1024 if config.max_positions is None else min(1024, config.max_positions)
    if config.is_step_by_step:
        if context is not None and context > _MOST_STEPS:
            raise ConfigError(
                f"a model that is trained position by position is planned for a context of at most {_MOST_STEPS}, "
                f"got {context}"
            )
        longest = min(longest, _MOST_STEPS)
    config.check_length(longest if context is None else context)
    return longest if context is None else context


def _num_rows(batch_tokens: int | None, length: int, *, is_gpu: bool) -> int:
    if batch_tokens is None:
        return max(1, _BATCH_TOKENS[is_gpu] // length)
    if batch_tokens < length:
        raise ConfigError(f"batch_tokens must be at least one row of {length:,} tokens, got {batch_tokens:,}")
    return batch_tokens // length


def _notes(config: ModelConfig, trace: StepTrace) -> list[str]:
    notes = []
    if config.family == "recurrent":
        notes.append("a recurrent model computes position by position, which takes longer than its operations: "
                     "the time is a lower bound")  # fmt: skip
    if not trace.targets:
        notes.append("an encoder without a head: the output layer of a task is not part of the plan")
    return notes


def _row(trace: StepTrace, work: _Work, devices: int, model_flops: float, tokens: float | None) -> PlanRow:
    memory, time = device_memory(trace, work, devices), step_time(trace, work, devices)
    replicas = devices // work.tensor_parallel
    speed = replicas * trace.tokens / time.total
    best = devices * work.accelerator.flops[work.precision]
    return PlanRow(
        devices=devices,
        memory=memory,
        fits=memory.peak <= work.accelerator.usable,
        time=time,
        batch_tokens=replicas * trace.rows * (trace.tokens // trace.rows),
        tokens_per_second=speed,
        flops_utilization=replicas * model_flops / time.total / best,
        seconds=None if tokens is None else tokens / speed,
    )


def device_memory(trace: StepTrace, work: _Work, devices: int) -> DeviceMemory:
    """Bytes on each of so many devices.

    A single replica stores its gradients only where activations are gone, so that the peak is less than the sum.
    """
    replicas, width = devices // work.tensor_parallel, _width(work.precision)
    weights = _divided(trace.weights, work.tensor_parallel)
    is_sharded = work.sharding == "full" and replicas > 1
    parts = replicas if is_sharded else 1
    share = weights / trace.weights.total if trace.weights.total else 1.0
    trainable = share * trace.weights.trainable
    optimizer = share * optimizer_bytes(trace.weights, work.optimizer)
    ema = _FLOAT32 * trainable if work.has_ema else 0.0
    wide = trace.wide_activations
    activations = trace.activations - wide + wide / work.tensor_parallel
    loss = _loss_bytes(trace, work)
    gradients, hidden_states = _FLOAT32 * trainable, trace.targets * trace.model_dim * width
    copies = share * trace.weight_copies
    scratch = max(0, trace.peak - max(trace.activations + trace.weight_copies, _FLOAT32 * trace.weights.trainable))
    stored = (_FLOAT32 * weights + optimizer + ema) / parts
    update = _update_bytes(trace.weights, work) * share
    evaluation = 0.0
    if is_sharded:
        blocks = [share * block for block in trace.weights.blocks]
        # The block that is computed and the next one are gathered, and so is what is outside of blocks.
        unit = max(blocks, default=0.0)
        copies = width * (share * trace.weights.outside + 2 * unit)
        gradients = gradients / parts
        whole = _FLOAT32 * (share * trace.weights.outside + unit)  # gradients that are not divided yet
        backward = copies + max(activations, gradients) + whole + scratch + hidden_states
        evaluation = _FLOAT32 * weights
        peak = stored + max(copies + activations + loss, backward, gradients + update, evaluation)
    else:
        backward = max(activations + copies, gradients) + scratch + _output_gradients(trace) + hidden_states
        peak = stored + max(activations + copies + loss, backward, gradients + update)
    return DeviceMemory(
        weights=round(_FLOAT32 * weights / parts),
        optimizer=round(optimizer / parts),
        ema=round(ema / parts),
        gradients=round(gradients),
        activations=round(activations),
        loss=round(loss),
        copies=round(copies),
        evaluation=round(evaluation),
        peak=round(peak),
    )


def optimizer_bytes(weights: Weights, optimizer: OptimizerName) -> int:
    """Bytes of an optimizer's state, without its counters of steps."""
    numbers = _STATES[optimizer] * weights.trainable
    return _FLOAT32 * (numbers - (weights.matrices if optimizer == "muon" else 0))


def _update_bytes(weights: Weights, work: _Work) -> float:
    """Bytes of intermediate results of an update: Muon's copies of all matrices of a shape."""
    if work.optimizer != "muon":
        return 0.0
    alike: dict[tuple[int, int], int] = {}
    for shape in weights.matrix_shapes:
        alike[shape] = alike.get(shape, 0) + shape[0] * shape[1]
    # The gradients ahead, the same in one tensor, and in the precision of products the iterate and its successor.
    return max(alike.values(), default=0) * (2 * _FLOAT32 + 2 * _width(work.precision))


def _loss_bytes(trace: StepTrace, work: _Work) -> float:
    """Bytes that the loss needs while it computes the logits of a part of the batch."""
    if not trace.targets:
        return 0.0
    accelerator, width = work.accelerator, _width(work.precision)
    memory = accelerator.memory if accelerator.is_gpu else None
    chunk = min(trace.targets, logits_chunk(trace.vocab_size, trace.targets, gpu_memory=memory))
    # Without the kernel of a GPU, the log-probabilities are stored beside the logits.
    per_logit = width if accelerator.is_gpu else width + _FLOAT32 + (_FLOAT32 if width < _FLOAT32 else 0)
    hidden_states = trace.targets * trace.model_dim * width
    return chunk * trace.vocab_size * per_logit + _output_gradients(trace) + hidden_states


def _output_gradients(trace: StepTrace) -> float:
    """Bytes of the gradient of the output projection, which the loss computes at once, and of its multiple."""
    return 2.0 * _FLOAT32 * trace.weights.output


def step_time(trace: StepTrace, work: _Work, devices: int) -> StepTime:
    """Seconds of a step on so many devices."""
    accelerator, shared = work.accelerator, work.tensor_parallel
    replicas = devices // shared
    forward, backward = (_body_time(trace, work, is_backward=side) for side in (False, True))
    loss_flops, loss_bytes = _loss_work(trace, work.precision)
    loss = (loss_flops / (accelerator.flops[work.precision] * accelerator.product_share),
            loss_bytes / (accelerator.bandwidth * accelerator.bandwidth_share))  # fmt: skip
    update = _update_time(trace.weights, work, replicas)
    compute = forward[0] + backward[0] + loss[0] + update[0]
    memory = forward[1] + backward[1] + loss[1] + update[1]
    hidden, waited = _communication(trace, work, devices, sum(forward), sum(backward) + sum(loss))
    device = compute + memory
    host = 0.0 if work.has_graphs and devices == 1 else _host_time(trace, work)
    total = max(device, host) + waited
    found = {"compute": compute, "memory": memory, "communication": waited, "host": host if host > device else 0.0}
    return StepTime(
        compute=compute,
        memory=memory,
        communication=hidden + waited,
        exposed=waited,
        total=total,
        limit=max(found, key=lambda name: found[name]),
    )


def _body_time(trace: StepTrace, work: _Work, *, is_backward: bool) -> tuple[float, float]:
    """Seconds of the operations limited by products, and of those limited by memory; without the loss."""
    accelerator, compute, memory = work.accelerator, 0.0, 0.0
    shares: dict[Work, float] = {
        "product": accelerator.product_share,
        "attention": accelerator.attention_share_at(trace.length),
        "other": 1.0,
    }
    part = _wide_share(trace)
    for operation in trace.operations:
        if operation.is_backward != is_backward:
            continue
        # Backward operations are not in a layer's forward call: the share of the forward pass is used.
        is_shared = float(operation.is_wide) if not is_backward else part[operation.work]
        divided = 1 - is_shared + is_shared / work.tensor_parallel
        flops, num_bytes = divided * operation.flops, divided * operation.num_bytes
        if operation.work == "other" and work.is_compiled:
            num_bytes *= _FUSED
        by_flops = flops / (accelerator.flops[work.precision] * shares[operation.work])
        by_bytes = num_bytes / (accelerator.bandwidth * accelerator.bandwidth_share)
        if by_flops > by_bytes:
            compute += max(by_flops, accelerator.launch)
        else:
            memory += max(by_bytes, accelerator.launch * (_FUSED if work.is_compiled else 1.0))
    return compute, memory


def _wide_share(trace: StepTrace) -> dict[Work, float]:
    """The share of each kind of work that tensor parallelism divides, by the bytes of the forward pass."""
    found: dict[Work, float] = {}
    for work in get_args(Work):
        own = [each for each in trace.operations if each.work == work and not each.is_backward]
        total = sum(each.num_bytes for each in own)
        found[work] = sum(each.num_bytes for each in own if each.is_wide) / total if total else 0.0
    return found


def _host_time(trace: StepTrace, work: _Work) -> float:
    return _DISPATCH * len(trace.operations) * (_FUSED if work.is_compiled else 1.0)


def _loss_work(trace: StepTrace, precision: Product) -> tuple[float, float]:
    """Floating-point operations of the loss, and the bytes of its kernel, which reads the logits twice."""
    logits = trace.targets * trace.vocab_size
    return 6.0 * logits * trace.model_dim, 3.0 * logits * _width(precision)


def _flops(trace: StepTrace) -> float:
    return sum(operation.flops for operation in trace.operations)


def _update_time(weights: Weights, work: _Work, replicas: int) -> tuple[float, float]:
    """Seconds of clipping, the optimizer and the average: products, and memory."""
    accelerator, parts = work.accelerator, replicas if work.sharding == "full" else 1
    states = optimizer_bytes(weights, work.optimizer) / _FLOAT32
    # Clipping reads the gradients twice and writes them; the optimizer reads all and writes all but the gradients.
    numbers = (
        3 * weights.trainable + 3 * weights.trainable + 2 * states + (3 * weights.trainable if work.has_ema else 0)
    )
    flops = 0.0
    if work.optimizer == "muon":
        for shape in weights.matrix_shapes:
            small, large = min(shape), max(shape)
            flops += _NEWTON_SCHULZ_STEPS * (4 * small * small * large + 2 * small**3)
    # Each device orthogonalizes whole matrices, also where they are sharded.
    products = flops / (accelerator.flops[work.precision] * accelerator.product_share)
    traffic = _FLOAT32 * numbers / (accelerator.bandwidth * accelerator.bandwidth_share)
    return products / work.tensor_parallel, traffic / (parts * work.tensor_parallel)


def _communication(trace: StepTrace, work: _Work, devices: int, forward: float, backward: float) -> tuple[float, float]:
    """Seconds of communication that is hidden behind computation, and of that which is waited for."""
    shared, accelerator = work.tensor_parallel, work.accelerator
    replicas, width = devices // shared, _width(work.precision)
    hidden = waited = 0.0
    if shared > 1:
        # In each layer two sums forward and two backward, of the residual stream of the batch.
        stream = trace.rows * trace.positions * trace.model_dim * width
        number = 4 * max(1, len(trace.weights.blocks))
        seconds = 2 * (shared - 1) / shared * stream / (accelerator.link * _COLLECTIVE_SHARE)
        waited += number * (seconds + _LATENCY * math.log2(shared))
    if replicas == 1:
        return hidden, waited
    weights = _divided(trace.weights, shared)
    units = len(trace.weights.blocks) + 1
    latency = _LATENCY * math.log2(replicas)
    once = _ring_seconds(weights, replicas, shared, accelerator)  # for each byte of a weight, one way
    if work.sharding == "none":  # after the backward pass: a reduce-scatter and an all-gather of float32
        return hidden, waited + 2 * _FLOAT32 * once + latency
    if work.optimizer == "muon":  # gathers each matrix to orthogonalize it
        matrices = trace.weights.matrices / trace.weights.total * weights
        waited += _FLOAT32 * _ring_seconds(matrices, replicas, shared, accelerator) + units * latency
    gather, reduce = width * once + units * latency, _FLOAT32 * once + units * latency
    for seconds, available in ((gather, forward), (gather + reduce, backward)):
        # The first block, or the last, has nothing to be hidden behind.
        exposed = max(seconds - available, seconds / units)
        hidden, waited = hidden + seconds - exposed, waited + exposed
    return hidden, waited


def _ring_seconds(weights: float, replicas: int, shared: int, accelerator: Accelerator) -> float:
    """Seconds of one pass around a ring, for a byte of each weight: the slower of the node and the network.

    The devices of a node that belong to one ring use the network side by side.
    """
    sent = (replicas - 1) / replicas * weights
    inside = sent / (accelerator.link * _COLLECTIVE_SHARE)
    per_node = max(1, accelerator.node_size // shared)
    if replicas <= per_node:
        return inside
    return max(inside, sent / (per_node * accelerator.network * _COLLECTIVE_SHARE))


def _divided(weights: Weights, shared: int) -> float:
    """Weights on each device of a group that shares layers."""
    return weights.total - weights.wide + weights.wide / shared


def _width(precision: Product) -> int:
    return _BFLOAT16 if precision == "bfloat16" else _FLOAT32
