"""What every model must satisfy, over every registered family, every preset and every switch."""

import tomllib
from functools import cache
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.models.convolutional import AddedPositions, ConvolutionalConfig
from regard.models.family import FAMILIES, ModelConfig, build_model, find_family, make_lookup, read_model_config
from regard.models.presets import SIZES, find_preset, preset_names
from regard.models.protocols import Decoder, DecoderState, Encoder, EncoderOutput, StatefulDecoder, StaticState
from regard.models.recurrent import RecurrentAttention, RecurrentConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.vision import VisionTransformerConfig
from regard.nn.blocks import BlockOrder
from regard.nn.feedforward import Activation
from regard.nn.positions import Positions
from regard.nn.recurrent import Cell
from regard.nn.similarity import DotProduct, SimilarityName
from regard.settings import to_toml
from regard.training.checkpoints import load_weights, read_tensors, weights_of, write_tensors

VOCAB, BATCH, SOURCE, TARGET = 31, 3, 7, 5
TINY = {
    "transformer": {"num_heads": 2, "feedforward_dim": 23, "context_length": 17},
    "recurrent": {},
    "convolutional": {"kernel_size": 3, "context_length": 17},
}
COMMON = {"num_layers": 2, "model_dim": 20, "dropout": 0.1}
SIMPLIFIED = {
    "block": "parallel",
    "residual": False,
    "value_projection": False,
    "output_projection": False,
    "shaped_attention": True,
}
TRANSFORMER = [
    *({"positions": p} for p in get_args(Positions)),
    *({"activation": a} for a in get_args(Activation)),
    *({"similarity": s} for s in get_args(SimilarityName)),
    *({"block": b} for b in get_args(BlockOrder)),
    {"norm": "rms", "bias": False},
    {"norm": "none"},
    {"num_key_value_heads": 1, "positions": "rotary"},
    {"tie_embeddings": False, "scale_embeddings": False},
    {"encoder_layers": 1, "decoder_layers": 3},
    {"encoder_positions": "rotary", "decoder_positions": "shaw"},
    {"encoder_positions": "none", "decoder_positions": "learned", "positions": "alibi"},
    {"query_key_norm": True, "num_key_value_heads": 1, "positions": "rotary"},
    {"query_key_norm": True, "block": "pre-norm"},
    {"initialization": "gpt2"},
    {"attention_temperature": 0.3},
    {"attention_dropout": 0.3, "token_dropout": 0.2},
    {"retrieval": "hard"},
    {"residual": False},
    {"feedforward_dim": 0},
    {"value_projection": False},
    {"output_projection": False},
    {"shaped_attention": True},
    SIMPLIFIED,
    {**SIMPLIFIED, "norm": "none", "positions": "alibi"},
    {**SIMPLIFIED, "feedforward_dim": 0, "block": "pre-norm", "similarity": "gaussian"},
    {"block": "parallel", "residual": False, "norm": "rms", "bias": False, "activation": "swiglu"},
    {"block": "pre-norm", "retrieval": "hard", "similarity": "mahalanobis", "positions": "shaw"},
    {"shaped_attention": True, "num_key_value_heads": 1, "similarity": "latent", "positions": "relative"},
    {"num_key_value_heads": 1, "similarity": "additive", "attention_temperature": 0.3, "positions": "rotary"},
    {"num_key_value_heads": 1, "similarity": "bilinear", "attention_dropout": 0.3, "positions": "alibi"},
    {"attention": "window", "window": 2},
    {"attention": "window", "window": 3, "num_key_value_heads": 1, "positions": "rotary"},
    {"attention": "window", "window": 3, "num_global_tokens": 1, "positions": "alibi"},
    {"attention": "window", "window": 2, "positions": "shaw", "similarity": "gaussian", "shaped_attention": True},
    {"attention": ["window", "full"], "window": 2, "positions": "relative", "retrieval": "hard"},
    {"attention": "strided", "window": 2, "stride": 3, "positions": "rotary"},
    {"attention": ["strided", "linear"], "window": 2, "stride": 2, "num_global_tokens": 1, "query_key_norm": True},
    {"attention": "linear", "positions": "rotary", "num_key_value_heads": 1},
    {"attention": "linear", "block": "parallel", "positions": "learned"},
    {"encoder_attention": "low-rank", "projected_length": 3},
    {"encoder_attention": ["window", "low-rank"], "window": 2, "attention": ["linear", "full"]},
]


RECURRENT = [
    *({"cell": cell, "attention": attention} for cell in get_args(Cell) for attention in get_args(RecurrentAttention)),
    *({"attention": "luong", "similarity": s} for s in get_args(SimilarityName)),
    {"cell": "rnn", "activation": "relu"},
    {"bidirectional": False},
    {"bidirectional": False, "attention": "bahdanau"},
    {"initial_state": "learned"},
    {"attention": "luong", "input_feeding": True},
    {"attention": "luong", "input_feeding": True, "retrieval": "hard", "similarity": "gaussian"},
    {"attention": "bahdanau", "attention_temperature": 0.3},
    {"attention": "luong", "retrieval": "hard"},
    {"encoder_layers": 1, "decoder_layers": 3, "attention": "luong"},
    {"encoder_layers": 3, "decoder_layers": 1},
    {"tie_embeddings": False},
    {"dropout": 0.0, "input_dropout": 0.3, "layer_dropout": 0.2, "token_dropout": 0.1},
    {"locked_dropout": True, "attention": "luong"},
    *({"cell": cell, "weight_dropout": 0.5, "dropout": 0.0} for cell in get_args(Cell)),
]
CONVOLUTIONAL = [
    *({"positions": p} for p in get_args(AddedPositions)),
    *({"similarity": s} for s in get_args(SimilarityName)),
    {"kernel_size": 5},
    {"dilation_growth": 2},
    {"retrieval": "hard"},
    {"attention_temperature": 0.3},
    {"encoder_layers": 1, "decoder_layers": 3},
    {"tie_embeddings": False},
]
KINDS = {name: find_preset(name)[1] for name in preset_names() if name not in SIZES}
"""Every preset of every registered family, in its smallest size."""


def is_encoder_decoder(values: dict) -> bool:
    config = read_model_config(values)
    return bool(config.encoder_depth and config.decoder_depth)


def named(switch: dict) -> str:
    return ",".join(str(v) if k == "family" else f"{k}={v}" for k, v in switch.items())


SWITCHES = [
    *({"family": "transformer", **switch} for switch in TRANSFORMER),
    *({"family": "recurrent", **switch} for switch in RECURRENT),
    *({"family": "convolutional", **switch} for switch in CONVOLUTIONAL),
]
CASES = {named(switch): {**COMMON, **TINY[switch["family"]], **switch} for switch in SWITCHES}
CASES |= {f"preset {kind}": values for kind, values in KINDS.items() if is_encoder_decoder(values)}
"""Encoder-decoders by name."""
LENGTHS = torch.tensor([7, 2, 5])
TOKENS = torch.randint(VOCAB, (BATCH, SOURCE + TARGET), generator=torch.Generator().manual_seed(0))


def make(values: dict, *, source_vocab_size: int | None = None, **more: object) -> Any:
    torch.manual_seed(1)
    model = build_model(read_model_config({**values, **more}), VOCAB, source_vocab_size=source_vocab_size)
    for name, parameter in model.named_parameters():  # initial biases are zero, and zeros hide mistakes
        # Gains near zero would hide them too: after a few norms of gain 0.3 all positions are equal to ten digits.
        std = 0.3 if model.config.model_dim < 100 else 0.1
        nn.init.normal_(parameter, mean=1.0 if name.endswith("norm.weight") else 0.0, std=std)
    return model.eval()


def tiny(family: str, **more: object) -> Any:
    return make({**COMMON, **TINY[family], "family": family}, **more)


@cache
def made(name: str) -> tuple[Any, EncoderOutput, Tensor]:
    """The model of a case, its encoder output and its logits: all tests share them, and none changes them."""
    model = make(CASES[name])
    return model, model.encode(TOKENS[:, :SOURCE], LENGTHS), model(TOKENS[:, SOURCE:], TOKENS[:, :SOURCE], LENGTHS)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def model(case: str) -> Any:
    return made(case)[0]


@pytest.fixture
def encoded(case: str) -> EncoderOutput:
    return made(case)[1]


@pytest.fixture
def logits(case: str) -> Tensor:
    """Those of `target` given `source`, of which each row has its own length."""
    return made(case)[2]


@pytest.fixture
def source() -> Tensor:
    return TOKENS[:, :SOURCE].clone()


@pytest.fixture
def target() -> Tensor:
    return TOKENS[:, SOURCE:].clone()


def test_it_follows_the_protocols(model, encoded: EncoderOutput):
    assert isinstance(model, Encoder)
    assert isinstance(model, Decoder)
    assert isinstance(model.initial_state(encoded), DecoderState)


def test_settings_survive_a_round_trip(model):
    text = to_toml(model.config.model_dump())
    assert read_model_config(tomllib.loads(text)) == model.config


def test_saved_weights_give_equal_logits(model, logits: Tensor, source, target, tmp_path):
    write_tensors(tmp_path / "model.safetensors", weights_of(model), {})
    other = build_model(model.config, VOCAB).eval()
    load_weights(other, read_tensors(tmp_path / "model.safetensors")[0])
    assert torch.equal(other(target, source, LENGTHS), logits)


def test_the_same_seed_gives_the_same_weights(model):
    first, second = (weights_of(_seeded(model.config)) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_every_parameter_gets_a_gradient(case: str, source, target):
    model = make(CASES[case])
    model(target, source, LENGTHS).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_padding_changes_nothing(model, logits: Tensor, source, target):
    for row, length in enumerate(LENGTHS.tolist()):
        alone = model(target[row : row + 1], source[row : row + 1, :length])
        torch.testing.assert_close(logits[row : row + 1], alone)
    changed = source.clone()
    changed[1, 2:] = (changed[1, 2:] + 1) % VOCAB
    torch.testing.assert_close(model(target, changed, LENGTHS), logits)


def test_the_decoder_is_causal(model, logits: Tensor, source, target):
    edited = target.clone()
    edited[:, 3] = (edited[:, 3] + 1) % VOCAB
    after = model(edited, source, LENGTHS)
    assert torch.equal(logits[:, :3], after[:, :3])
    assert not torch.allclose(logits[:, 3:], after[:, 3:])


def test_the_decoder_depends_on_the_whole_source(case: str, model, source, target):
    edited = source.clone()
    edited[:, -1] = (edited[:, -1] + 1) % VOCAB
    has_changed = (model.encode(edited).hidden_states != model.encode(source).hidden_states).any(-1)
    assert has_changed[:, -1].all()
    values = CASES[case]
    has_window = values["family"] == "transformer" and "window" in values
    if has_window or (values["family"] == "transformer" and values.get("retrieval") == "hard"):
        assert has_changed[:, :-1].any()  # a head retrieves one position: some retrieve the edited one
    elif values["family"] != "convolutional" and values.get(
        "bidirectional", True
    ):  # their receptive fields are limited
        assert has_changed.all()
    assert not torch.allclose(model(target, source)[:, 0], model(target, edited)[:, 0])


@pytest.mark.parametrize("pieces", [[1] * 5, [2, 3], [3, 1, 1]])
def test_step_by_step_equals_all_at_once(model, encoded: EncoderOutput, logits: Tensor, target, pieces: list[int]):
    state, parts = model.initial_state(encoded), []
    for piece in target.split(pieces, dim=1):
        part, state = model.step(piece, state)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, dim=1), logits)


def test_the_model_for_inference_computes_the_same(model, source, target):
    """In a static state, one token at a time, where the fast implementations are used."""
    fast = model.for_inference()
    encoded = fast.encode(source)
    state = fast.static_state(BATCH, 11, source_length=SOURCE)
    state.put(torch.arange(BATCH), fast.initial_state(encoded))
    parts = []
    for token in target.split(1, dim=1):
        part, state = fast.step(token, state)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, dim=1), model(target, source))


def test_a_selected_state_continues_its_rows(model, encoded: EncoderOutput, logits: Tensor, target):
    rows = torch.tensor([2, 0, 2])
    _, state = model.step(target[:, :3], model.initial_state(encoded))
    found, _ = model.step(target[rows, 3:4], state.select(rows))
    torch.testing.assert_close(found[:, 0], logits[rows, 3])


def test_rows_of_a_static_state_continue_where_they_were_put(model, logits: Tensor, source, target):
    """Three rows after 3, 1 and 2 tokens continue in one batch, beside an unused slot."""
    static = model.static_state(BATCH + 1, 11, source_length=SOURCE + 2)
    assert isinstance(static, StaticState)
    slots, counts = [3, 0, 2], [3, 1, 2]
    for slot, row, count in zip(slots, range(BATCH), counts, strict=True):
        encoded = model.encode(source[row : row + 1, : LENGTHS[row]])
        _, state = model.step(target[row : row + 1, :count], model.initial_state(encoded))
        static.put(torch.tensor([slot]), state)
    for more in range(2):
        tokens = torch.zeros(BATCH + 1, 1, dtype=torch.long)
        for slot, row, count in zip(slots, range(BATCH), counts, strict=True):
            tokens[slot] = target[row, count + more]
        found, static = model.step(tokens, static)
        for slot, row, count in zip(slots, range(BATCH), counts, strict=True):
            torch.testing.assert_close(found[slot, 0], logits[row, count + more])


def test_reordered_rows_of_a_static_state_continue(model, source, target):
    static = model.static_state(2, 11, source_length=SOURCE)
    for slot in range(2):
        _, state = model.step(target[slot : slot + 1, :3], model.initial_state(model.encode(source[:1])))
        static.put(torch.tensor([slot]), state)
    static.reorder(torch.tensor([1, 1]))
    logits, _ = model.step(target[:2, 3:4], static)
    rows = torch.cat([target[[1, 1], :3], target[:2, 3:4]], dim=1)
    torch.testing.assert_close(logits[:, 0], model(rows, source[[0, 0]])[:, 3])


def test_the_order_of_the_batch_does_not_matter(model, logits: Tensor, source, target):
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(model(target[order], source[order], LENGTHS[order]), logits[order])


def test_dropout_only_while_training(case: str, logits: Tensor, source, target):
    model = make(CASES[case])
    assert torch.equal(model(target, source, LENGTHS), logits)
    model.train()
    assert not torch.equal(model(target, source), model(target, source))


FAMILY_NAMES = [family.name for family in FAMILIES]
TOKEN_FAMILIES = list(TINY)


def test_the_families_of_this_package_are_registered():
    assert {"transformer", "recurrent", "convolutional", "vision", "cnn", "efficientnet"} <= set(FAMILY_NAMES)


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_a_family_has_settings_of_its_own_and_presets_that_fit_them(name: str):
    family = find_family(name)
    assert family.Config.model_fields["family"].default == name
    assert family.presets
    for preset in family.presets.values():
        for values in preset.sizes.values():
            config = read_model_config({**values, **preset.shared, "family": name})
            assert type(config) is family.Config
            assert config.input_kind
    with pytest.raises(ConfigError, match="family"):
        family.Config(family="other")


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_a_preset_without_its_decoder_is_an_encoder_and_without_its_encoder_a_decoder(name: str):
    family = find_family(name)
    for preset in family.presets.values():
        values = {**preset.sizes["tiny"], **preset.shared, "family": name}
        alone = read_model_config(family.encoder_only(values))
        assert alone.decoder_depth == 0 or alone.encoder_depth == 0
        if alone.input_kind == "tokens":
            decoder = read_model_config(family.decoder_only(values))
            assert decoder.encoder_depth == 0


def test_an_unknown_family_gets_the_nearest():
    with pytest.raises(ConfigError, match="did you mean transformer"):
        read_model_config({"family": "transfomer"})


def test_settings_without_a_family_are_those_of_a_transformer():
    assert read_model_config({}) == TransformerConfig()


def test_each_family_states_its_limits_and_preferences():
    post_norm, pre_norm = TransformerConfig(), TransformerConfig(block="pre-norm")
    language = RecurrentConfig(encoder_layers=0, bidirectional=False)
    assert (post_norm.lr_scale, post_norm.default_warmup_steps) == (0.5, 4_000)
    assert (pre_norm.lr_scale, pre_norm.default_warmup_steps) == (1.0, None)
    assert (RecurrentConfig().lr_scale, RecurrentConfig(cell="rnn").lr_scale) == (1.0, 0.5)
    assert [c.can_use_muon for c in (pre_norm, language, ConvolutionalConfig())] == [True, False, False]
    assert [c.can_compile for c in (pre_norm, language, ConvolutionalConfig())] == [True, False, True]
    assert [c.can_use_cuda_graphs for c in (pre_norm, language, ConvolutionalConfig())] == [True, False, True]
    assert [c.can_carry_state for c in (pre_norm, language, RecurrentConfig())] == [False, True, False]
    assert [c.can_isolate_documents for c in (pre_norm, language, VisionTransformerConfig())] == [True, False, False]
    gru = RecurrentConfig(cell="gru")
    assert [c.gains_from_bf16_on_cpu for c in (pre_norm, language, gru)] == [True, True, False]
    assert [c.input_kind for c in (pre_norm, VisionTransformerConfig())] == ["tokens", "pixels"]


@pytest.mark.parametrize(
    ("config", "limits"),
    [
        (TransformerConfig(positions="learned", context_length=7), (7, 7, 7)),
        (TransformerConfig(encoder_positions="learned", context_length=7), (7, None, 7)),
        (TransformerConfig(positions="learned", encoder_layers=0, context_length=7), (None, 7, 7)),
        (TransformerConfig(positions="rotary"), (None, None, None)),
        (ConvolutionalConfig(positions="learned", context_length=7), (7, 7, 7)),
        (RecurrentConfig(), (None, None, None)),
    ],
    ids=repr,
)
def test_the_longest_sequence_is_that_of_learned_positions(config: ModelConfig, limits: tuple):
    assert (config.max_source_positions, config.max_target_positions, config.max_positions) == limits


@pytest.mark.parametrize("family", TOKEN_FAMILIES)
def test_tied_embeddings_are_one_matrix(family: str):
    model = tiny(family)
    assert model.output.weight is model.embedding.weight
    assert "output.weight" not in weights_of(model)


@pytest.mark.parametrize("family", TOKEN_FAMILIES)
def test_an_encoder_decoder_needs_a_source_and_a_decoder_takes_none(family: str, source, target):
    both, alone = tiny(family), make(find_family(family).decoder_only({**COMMON, **TINY[family], "family": family}))
    encoded = both.encode(source)
    for call in (both, both.decode, both.hidden_states, lambda _: both.initial_state()):
        with pytest.raises(ConfigError, match="needs a source"):
            call(target)
    for call in (lambda: alone(target, source), lambda: alone.decode(target, encoded),
                 lambda: alone.initial_state(encoded)):  # fmt: skip
        with pytest.raises(ConfigError, match="takes no source"):
            call()
    encoder = tiny(family, decoder_layers=0)
    with pytest.raises(ConfigError, match="is an encoder"):
        encoder(target)


@pytest.mark.parametrize("family", TOKEN_FAMILIES)
def test_the_encoder_may_have_a_vocabulary_of_its_own(family: str, source, target):
    model = tiny(family, source_vocab_size=VOCAB + 12)
    assert (model.vocab_size, model.source_vocab_size) == (VOCAB, VOCAB + 12)
    assert tiny(family).source_vocab_size == VOCAB
    large = source + 12
    logits = model(target, large, LENGTHS)
    assert logits.shape == (BATCH, TARGET, VOCAB)
    logits.square().sum().backward()
    assert model.source_embedding.weight.grad.abs().sum() > 0
    assert model.embedding.weight.grad.abs().sum() > 0
    with torch.no_grad():
        model.embedding.weight.mul_(3.0)
        before = model.encode(large, LENGTHS).hidden_states
        model.embedding.weight.mul_(2.0)
        assert torch.equal(model.encode(large, LENGTHS).hidden_states, before)
    with pytest.raises(ConfigError, match="with an encoder"):
        build_model(
            read_model_config(find_family(family).decoder_only(model.config.model_dump())), 5, source_vocab_size=7
        )


@pytest.mark.parametrize("family", TOKEN_FAMILIES)
def test_a_decoder_alone_encodes_its_causal_hidden_states(family: str, source):
    model = make(find_family(family).decoder_only({**COMMON, **TINY[family], "family": family}))
    output = model.encode(source, LENGTHS, segments=torch.ones_like(source))
    assert torch.equal(output.hidden_states, model.hidden_states(source))
    assert output.mask[:, 0, 0].sum(-1).tolist() == LENGTHS.tolist()
    with pytest.raises(ConfigError, match="extra_embeddings need an encoder"):
        model.encode(source, extra_embeddings=torch.zeros(*source.shape, 20))


@pytest.mark.parametrize("family", TOKEN_FAMILIES)
def test_extra_embeddings_are_added_to_those_of_the_tokens(family: str, source):
    model = tiny(family, decoder_layers=0)
    plain = model.encode(source, LENGTHS).hidden_states
    zeros = torch.zeros(*source.shape, 20)
    assert torch.equal(model.encode(source, LENGTHS, extra_embeddings=zeros).hidden_states, plain)
    # Adding the difference of two scaled embeddings is reading the other token.
    other = (source + 1) % VOCAB
    difference = (model.embedding(other) - model.embedding(source)) * 20**0.5
    torch.testing.assert_close(
        model.encode(source, LENGTHS, extra_embeddings=difference).hidden_states,
        model.encode(other, LENGTHS).hidden_states,
    )


def test_a_model_without_layers_encodes_its_embeddings(source):
    model = make({"num_layers": 0, "model_dim": 20, "num_heads": 2, "positions": "none"})
    expected = model.embedding(source) * 20**0.5
    assert torch.equal(model.encode(source, LENGTHS).hidden_states, expected)


ALONE = [
    {"family": "transformer", "positions": "rotary"},
    {"family": "transformer", "positions": "rotary", "attention": ["window", "linear"], "window": 2},
    {"family": "transformer", "attention": "strided", "window": 2, "stride": 2, "num_global_tokens": 1},
    *({"family": "recurrent", "bidirectional": False, "cell": cell} for cell in get_args(Cell)),
    {"family": "recurrent", "bidirectional": False, "initial_state": "learned"},
    {"family": "recurrent", "bidirectional": False, "hidden_dim": 23},
    {"family": "convolutional"},
]
DECODERS = {named(switch): {**COMMON, **TINY[switch["family"]], **switch, "encoder_layers": 0} for switch in ALONE}
DECODERS |= {
    f"preset {kind}": values
    for kind, values in KINDS.items()
    if values.get("encoder_layers") == 0 and read_model_config(values).input_kind == "tokens"
}


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_alone_is_a_causal_language_model(target, name: str):
    model = make(DECODERS[name])
    assert model.encoder is None
    assert isinstance(model, StatefulDecoder) == model.config.can_carry_state
    expected = model(target)
    for fast in (model, model.for_inference()):
        state, parts = fast.initial_state(batch_size=BATCH), []
        static = fast.static_state(BATCH, 11)
        static.put(torch.arange(BATCH), fast.initial_state(batch_size=BATCH))
        for place, token in enumerate(target.split(1, dim=1)):
            logits, state = fast.step(token, state)
            parts.append(logits)
            torch.testing.assert_close(fast.step(token, static)[0], expected[:, place : place + 1])
        torch.testing.assert_close(torch.cat(parts, dim=1), expected)


DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1], [3, 4, 4, 4, 4], [7, 7, 7, 7, 7]])


@pytest.mark.parametrize("is_encoder", [False, True], ids=["decoder", "encoder"])
@pytest.mark.parametrize(
    "switch",
    [
        *({"positions": positions} for positions in get_args(Positions)),
        {"attention": "window", "window": 2, "num_global_tokens": 1},
        {"attention": ["strided", "linear"], "window": 2, "stride": 3, "positions": "rotary"},
    ],
    ids=named,
)
def test_documents_that_share_a_row_are_isolated(target, switch: dict, is_encoder: bool):
    model = tiny("transformer", **switch, **({"decoder_layers": 0} if is_encoder else {"encoder_layers": 0}))
    together = model.encode(target, documents=DOCUMENTS).hidden_states
    for row, numbers in enumerate(DOCUMENTS.tolist()):
        for number in sorted(set(numbers)):
            places = [place for place, other in enumerate(numbers) if other == number]
            alone = model.encode(target[row : row + 1, places]).hidden_states[0]
            torch.testing.assert_close(together[row, places], alone)


@pytest.mark.parametrize("family", ["recurrent", "convolutional"])
def test_other_families_cannot_isolate_documents(target, family: str):
    model = make(find_family(family).decoder_only({**COMMON, **TINY[family], "family": family}))
    for call in (model.encode, model.hidden_states):
        with pytest.raises(ConfigError, match=f"{family} cannot isolate documents"):
            call(target, documents=DOCUMENTS)


@pytest.mark.parametrize("family", TOKEN_FAMILIES)
def test_an_encoder_alone_has_hidden_states_and_no_logits(source, family: str):
    model = tiny(family, decoder_layers=0)
    assert model.output is None
    hidden_states = model.encode(source, LENGTHS).hidden_states
    assert hidden_states.shape == (BATCH, SOURCE, COMMON["model_dim"])
    with pytest.raises(ConfigError, match="logits need"):
        model.logits(hidden_states)


@pytest.mark.parametrize("family", TOKEN_FAMILIES)
def test_a_lookup_has_the_retrieval_and_the_temperature_of_the_settings(family: str):
    """What a head on a model builds its own attention with."""
    values = {**COMMON, **TINY[family], "family": family, "retrieval": "hard", "attention_temperature": 0.3}
    lookup = make_lookup(read_model_config(values), DotProduct(), is_causal=True)
    assert (lookup.retrieval, lookup.temperature, lookup.is_causal) == ("hard", 0.3, True)


def test_a_model_is_built_from_a_preset_by_its_class():
    model = Transformer.from_preset("gpt2-tiny", vocab_size=31, num_layers=1)
    assert (model.config.positions, model.config.num_layers, model.vocab_size) == ("learned", 1, 31)
    with torch.device("meta"):
        gpt2 = Transformer.from_preset("gpt2", vocab_size=50_257)
    assert sum(p.numel() for p in gpt2.parameters()) == 124_439_808  # Radford et al. (2019), as published
    with pytest.raises(ConfigError, match="lstm-base is a preset of the family recurrent"):
        Transformer.from_preset("lstm", vocab_size=31)


def _seeded(config: ModelConfig) -> Any:
    torch.manual_seed(5)
    return build_model(config, VOCAB)
