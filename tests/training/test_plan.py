"""The calculator of memory and time, against models, optimizers and autograd themselves."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.family import FAMILIES, build_model, find_family, read_model_config
from regard.models.presets import find_preset
from regard.nn.losses import linear_cross_entropy, logits_chunk
from regard.training.optimizers import OPTIMIZER_TRAITS, OptimizerName, make_optimizer
from regard.training.plan import ACCELERATORS, plan
from regard.training.plan.plan import NUM_DEVICES, optimizer_bytes
from regard.training.plan.trace import StepTrace, count_weights, kv_cache_bytes, trace_step

KINDS = {kind: find_family(family.name).Config.input_kind for family in FAMILIES for kind in family.presets}
PLANNED = [kind for kind, reads in KINDS.items() if reads in ("tokens", "pixels")]
TOKENS = [kind for kind, reads in KINDS.items() if reads == "tokens"]
RECURRENT = ["rnn", "gru", "lstm", "gru-attention", "lstm-attention"]
VOCAB, ROWS, LENGTH = 97, 3, 17


def config_of(preset: str, **values: Any) -> Any:
    return read_model_config({**find_preset(preset)[1], **values})


def built(preset: str, **values: Any) -> Any:
    config = config_of(preset, **values)
    shape = find_family(config.family).default_shape
    return build_model(config, VOCAB, shape=shape).float().train()


def traced(preset: str, **options: Any) -> StepTrace:
    values = options.pop("model", {})
    return trace_step(config_of(preset, **values), vocab_size=VOCAB, rows=ROWS, length=LENGTH, **options)


def hidden_states(model: Any, preset: str) -> Tensor:
    config = model.config
    if KINDS[preset] == "pixels":
        shape = find_family(config.family).default_shape
        return model.encode(torch.randn(ROWS, shape.channels, shape.size, shape.size)).hidden_states
    tokens = torch.randint(VOCAB, (ROWS, LENGTH))
    if not config.decoder_depth:
        return model.encode(tokens).hidden_states
    return model.hidden_states(tokens, model.encode(tokens)) if config.encoder_depth else model.hidden_states(tokens)


def saved_bytes(model: Any, preset: str) -> int:
    """What autograd keeps of a forward pass beside the parameters, and the hidden states, which the loss keeps."""
    kept: dict[int, int] = {}
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    alive: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            alive.append(tensor)  # so that no other tensor gets its address
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        pack(hidden_states(model, preset))
    return sum(kept.values())


@pytest.fixture(autouse=True)
def single_precision(exact_and_repeatable: None) -> Iterator[None]:
    """Bytes are those of training."""
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(torch.float64)


@pytest.mark.parametrize("preset", PLANNED)
def test_the_weights_of_every_preset_are_those_of_the_built_model(preset: str):
    assert traced(preset).weights == count_weights(built(preset))
    assert traced(preset).weights.total == sum(p.numel() for p in built(preset).parameters())


def test_the_published_size():
    """Radford et al. (2019): 124 million, as counted in the released weights."""
    assert plan("gpt2-base", gpus=1, context=64, vocab_size=50_257).parameters == 124_439_808


@pytest.mark.parametrize("preset", ["gpt", "transformer", "lstm", "vit"])
@pytest.mark.parametrize("name", OPTIMIZER_TRAITS)
def test_the_bytes_of_an_optimizer_are_those_of_its_state(preset: str, name: OptimizerName):
    model = built(preset)
    optimizer = make_optimizer(name, model, betas=(0.9, 0.95), epsilon=1e-8, weight_decay=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    stored = sum(value.nbytes for value in states if value.dim() > 0)
    assert optimizer_bytes(count_weights(model), name) == stored


@pytest.mark.parametrize("preset", [kind for kind in PLANNED if kind not in RECURRENT])
def test_activations_are_what_autograd_keeps(preset: str):
    """Within 5 %: a mask of dropout is kept beside what is saved."""
    measured = saved_bytes(built(preset), preset)
    assert traced(preset, is_gpu=False).activations == pytest.approx(measured, rel=0.05, abs=2_000)


@pytest.mark.parametrize("preset", ["gpt", "gpt2", "llama", "transformer", "vit"])
def test_activations_in_bfloat16_and_copies_of_weights_are_what_autograd_keeps(preset: str):
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        measured = saved_bytes(built(preset), preset)
    found = traced(preset, is_gpu=False, precision="bfloat16")
    assert found.activations + found.weight_copies == pytest.approx(measured, rel=0.05)
    matrices = found.weights.matrices
    assert found.weight_copies == pytest.approx(2 * matrices, rel=0.05)  # and those of norms, without positions


@pytest.mark.parametrize("preset", [kind for kind in RECURRENT if "attention" not in kind])
def test_activations_of_recurrent_layers_are_within_a_factor_of_five(preset: str):
    """On a CPU, PyTorch computes recurrent layers by many operations, each of which keeps its result."""
    ratio = traced(preset, is_gpu=False).activations / saved_bytes(built(preset), preset)
    assert 1 / 5 < ratio < 1


def test_a_gpu_keeps_less_of_norms_and_dropout():
    on_cpu, on_gpu = (traced("gpt", model={"dropout": 0.1}, is_gpu=is_gpu).activations for is_gpu in (False, True))
    assert 0.5 * on_cpu < on_gpu < on_cpu


@pytest.mark.parametrize("preset", ["gpt", "gpt2", "llama", "simplified"])
def test_each_weight_of_a_matrix_takes_six_operations_for_a_token(preset: str):
    """Two forward and four backward; the gradient of the embeddings of tokens is not computed."""
    found = traced(preset, model={"encoder_layers": 0, "bias": False})
    products = sum(each.flops for each in found.operations if each.work == "product")
    assert products == 6 * found.weights.matrices * ROWS * LENGTH


def test_attention_takes_two_products_forward_and_five_backward_and_half_of_them_is_masked():
    found = traced("gpt")
    config = config_of("gpt")
    one = 2 * ROWS * LENGTH * LENGTH * config.model_dim * config.num_layers
    measured = sum(each.flops for each in found.operations if each.work == "attention")
    assert measured == pytest.approx(7 * one / 2)


def test_the_loss_is_what_its_tensors_take():
    """The peak of the fake tensors of the loss of a batch, in which nothing is fused."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from regard.training.plan.trace import _Meter

    vocab, width, tokens = 8_192, 64, 5_000
    with FakeTensorMode():
        output = nn.Linear(width, vocab, bias=False)
        states = torch.randn(tokens, width, requires_grad=True)
        targets = torch.zeros(tokens, dtype=torch.long)
        with _Meter(output) as meter:
            linear_cross_entropy(states, output.weight, targets)
    values = {"num_layers": 1, "model_dim": width, "num_heads": 1, "feedforward_dim": width}
    row = plan("gpt2", gpus=1, hardware="cpu", context=1_000, batch_tokens=tokens, vocab_size=vocab,
               settings={"model": values}).rows[0]  # fmt: skip
    assert row.memory.loss == pytest.approx(meter.peak, rel=0.1)
    chunk = logits_chunk(vocab, tokens)
    assert chunk < tokens
    assert row.memory.loss > 8 * chunk * vocab


@pytest.mark.parametrize("preset", ["gpt", "llama", "transformer", "lstm"])
def test_the_cache_of_a_text_is_that_of_the_engine(preset: str):
    model = built(preset)
    state = model.static_state(1, LENGTH, source_length=LENGTH if model.config.encoder_depth else 0)
    if preset in ("gpt", "llama"):
        exact = state.num_bytes
        assert exact <= kv_cache_bytes(model.config, LENGTH, precision="float32") <= exact + 64  # the lengths
    found = {name: kv_cache_bytes(model.config, LENGTH, precision=name) for name in ("float32", "bfloat16")}
    assert found["float32"] == pytest.approx(2 * found["bfloat16"], rel=0.01)


def test_shared_key_value_heads_need_less_cache():
    own, shared = (
        kv_cache_bytes(config_of("gpt", num_key_value_heads=heads), 64, precision="bfloat16") for heads in (4, 1)
    )
    assert own == pytest.approx(4 * shared, rel=0.01)


@pytest.mark.parametrize("preset", ["gpt", "gpt-small", "transformer", "vit"])
@pytest.mark.parametrize("options", [{}, {"optimizer": "muon"}, {"optimizer": "momentum", "ema": False},
                                     {"precision": "float32"}, {"activation_checkpointing": True},
                                     {"tensor_parallel": 2}])  # fmt: skip
def test_with_full_sharding_more_devices_never_need_more_memory(preset: str, options: dict[str, Any]):
    context = None if preset == "vit" else 64
    gpus = [number for number in NUM_DEVICES if number % options.get("tensor_parallel", 1) == 0]
    peaks = [row.memory.peak for row in plan(preset, gpus=gpus, sharding="full", context=context, **options).rows]
    assert all(later <= earlier for earlier, later in itertools.pairwise(peaks))
    assert peaks[-1] < peaks[0]


def test_sharded_weights_are_whole_in_evaluation():
    one, many = plan("gpt", gpus=[1, 8], sharding="full", context=64).rows
    assert one.memory.evaluation == 0
    assert many.memory.evaluation == one.memory.weights == 8 * many.memory.weights


@pytest.mark.parametrize("options", [{"sharding": "full"}, {"activation_checkpointing": True}])
@pytest.mark.parametrize("preset", ["lstm", "cnn", "bag"])
def test_what_needs_blocks_is_an_error_for_models_without_them(preset: str, options: dict[str, Any]):
    with pytest.raises(ConfigError, match=rf"^{next(iter(options))} is for models with the blocks of a Transformer"):
        plan(preset, gpus=8, **options)


def test_without_sharding_every_device_has_everything():
    rows = plan("gpt", sharding="none", context=64).rows
    assert len({row.memory for row in rows}) == 1


def test_options_have_the_effects_that_they_have_in_training():
    wide = {"model": {"num_layers": 3, "model_dim": 512, "num_heads": 8, "feedforward_dim": 2048}}

    def row(**options: Any) -> Any:
        return plan("gpt-small", **{"gpus": 8, "context": 128, "settings": wide, **options}).rows[0]

    plain = row()
    recomputed = row(activation_checkpointing=True)
    assert recomputed.memory.activations < plain.memory.activations / 2
    assert recomputed.time.compute > plain.time.compute
    assert recomputed.flops_utilization < plain.flops_utilization
    shared = row(tensor_parallel=4)
    assert shared.memory.weights < plain.memory.weights
    assert shared.memory.activations < plain.memory.activations
    assert shared.time.compute < plain.time.compute
    assert row(ema=False).memory.ema == 0
    assert row(optimizer="muon").memory.optimizer < plain.memory.optimizer
    assert row(optimizer="muon").time.compute > plain.time.compute
    assert row(precision="float32").memory.activations > 1.5 * plain.memory.activations
    assert row(compile=True).time.memory < plain.time.memory
    many = {"gpus": 64}
    assert row(network=10.0, **many).time.exposed > row(network=400.0, **many).time.exposed
    assert row(sharding="full", **many).time.communication > row(**many).time.communication
    timed = plan("gpt", gpus=[1, 2], context=64, tokens=1e9).rows
    assert [each.seconds for each in timed] == [pytest.approx(1e9 / each.tokens_per_second) for each in timed]


def test_a_step_of_the_shape_that_was_measured_takes_as_long():
    """559 k tokens/s on an H200, compiled (benchmarks/RESULTS.md); the calculator is within 20 %."""
    found = plan("gpt2-base", gpus=1, context=1024, batch_tokens=65_536, vocab_size=50_304, ema=False, compile=True,
                 settings={"model": {"dropout": 0.0}}).rows[0]  # fmt: skip
    assert found.tokens_per_second == pytest.approx(559e3, rel=0.2)


def test_the_default_dtype_of_pytorch_has_no_effect():
    single = plan("gpt", gpus=1, context=64)
    torch.set_default_dtype(torch.float64)
    assert plan("gpt", gpus=1, context=64) == single
    assert torch.get_default_dtype() == torch.float64


@pytest.mark.parametrize("preset", sorted(set(KINDS) - set(PLANNED)))
def test_what_cannot_be_planned_is_one_line(preset: str):
    with pytest.raises(ConfigError, match=rf"a plan is made for models of tokens or of images, .* {KINDS[preset]}$"):
        plan(preset, gpus=1)


@pytest.mark.parametrize("name", ACCELERATORS)
def test_every_device_is_planned(name: str):
    found = plan("gpt", gpus=[1, 8, 1024], hardware=name, context=64)
    assert [row.devices for row in found.rows] == [1, 8, 1024]
    assert found.rows[0].fits
    assert 0 < found.rows[0].flops_utilization < 1
