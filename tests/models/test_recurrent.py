"""Recurrent models: attention against a loop, dropout, and invalid settings."""

import pytest
import torch
from torch import nn

from regard.errors import ConfigError
from regard.models.recurrent import Recurrent, RecurrentConfig, RecurrentEncoderOutput
from regard.nn.similarity import Additive, Bilinear

VOCAB, WIDTH, BATCH, SOURCE, TARGET = 13, 10, 3, 7, 5
LENGTHS = torch.tensor([7, 2, 5])


def make(**settings) -> Recurrent:
    model = Recurrent(RecurrentConfig.read({"model_dim": WIDTH, "num_layers": 1, **settings}), VOCAB).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


def encoded(model: Recurrent) -> tuple[torch.Tensor, torch.Tensor, RecurrentEncoderOutput]:
    source, target = torch.randint(VOCAB, (BATCH, SOURCE)), torch.randint(VOCAB, (BATCH, TARGET))
    memory = model.encode(source, LENGTHS)
    assert isinstance(memory, RecurrentEncoderOutput)
    return source, target, memory


def softmax_average(scores: list[torch.Tensor], values: torch.Tensor) -> torch.Tensor:
    weights = torch.stack(scores).softmax(dim=0)
    return sum((weight * value for weight, value in zip(weights, values, strict=True)), torch.zeros(WIDTH))


def test_bahdanaus_attention_equals_its_loop():
    """Bahdanau et al. (2014), A.1.2 and A.2.2: score the old state, average, then step."""
    model = make(attention="bahdanau", cell="gru")
    source, target, memory = encoded(model)
    decoder = model.decoder
    assert decoder is not None
    assert decoder.lookup is not None
    assert decoder.join is not None
    similarity = decoder.lookup.similarity
    assert isinstance(similarity, Additive)
    scores = model(target, source, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        hidden = memory.last[-1][0][0, row]
        for t in range(TARGET):
            keys = memory.hidden_states[row, :length]
            energies = [
                ((hidden @ similarity.query[0] + key @ similarity.key[0]).tanh() @ similarity.output[0])[0]
                for key in keys
            ]
            found = softmax_average(energies, keys)
            embedded = model.embedding(target[row, t]) * WIDTH**0.5
            _, ((last,),) = decoder.stack(torch.cat([embedded, found])[None, None], state=((hidden[None, None],),))
            hidden = last[0, 0]
            joined = (decoder.join.weight @ torch.cat([hidden, found]) + decoder.join.bias).tanh()
            torch.testing.assert_close(scores[row, t], model.embedding.weight @ joined)


@pytest.mark.parametrize("input_feeding", [False, True])
def test_luongs_attention_equals_its_loop(input_feeding: bool):
    """Luong et al. (2015), equations 5 to 8: step, score the new state, join; fed on, if it is to be."""
    model = make(attention="luong", cell="rnn", input_feeding=input_feeding)
    source, target, memory = encoded(model)
    decoder = model.decoder
    assert decoder is not None
    assert decoder.lookup is not None
    assert decoder.join is not None
    similarity = decoder.lookup.similarity
    assert isinstance(similarity, Bilinear)
    scores = model(target, source, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        hidden, joined = memory.last[-1][0][0, row], torch.zeros(WIDTH)
        for t in range(TARGET):
            embedded = model.embedding(target[row, t]) * WIDTH**0.5
            read = torch.cat([embedded, joined]) if input_feeding else embedded
            _, ((last,),) = decoder.stack(read[None, None], state=((hidden[None, None],),))
            hidden = last[0, 0]
            keys = memory.hidden_states[row, :length]
            found = softmax_average([hidden @ similarity.weight[0] @ key for key in keys], keys)
            joined = (decoder.join.weight @ torch.cat([hidden, found]) + decoder.join.bias).tanh()
            torch.testing.assert_close(scores[row, t], model.embedding.weight @ joined)


def test_without_attention_one_vector_is_all_the_decoder_gets():
    model = make()
    _, target, memory = encoded(model)
    other = RecurrentEncoderOutput(torch.randn_like(memory.hidden_states), memory.mask, memory.last)
    assert torch.equal(model.decode(target, memory), model.decode(target, other))


def test_a_deeper_decoder_starts_from_the_encoders_last_layer():
    model = make(encoder_layers=2, decoder_layers=3)
    _, _, memory = encoded(model)
    hidden = model.initial_state(memory).hidden
    for layer, beside in zip(hidden, [0, 1, 1], strict=True):
        assert all(torch.equal(part, last) for part, last in zip(layer, memory.last[beside], strict=True))


def test_a_bidirectional_encoder_hands_over_both_ends():
    model = make()
    _, _, memory = encoded(model)
    half = WIDTH // 2
    for row, length in enumerate(LENGTHS.tolist()):
        torch.testing.assert_close(memory.last[0][0][0, row, :half], memory.hidden_states[row, length - 1, :half])
        torch.testing.assert_close(memory.last[0][0][0, row, half:], memory.hidden_states[row, 0, half:])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"encoder_layers": 0}, "a decoder cannot be bidirectional"),
        ({"num_layers": 0}, "needs layers"),
        ({"model_dim": 11}, "model_dim must be even for a bidirectional encoder, got model_dim=11"),
        ({"decoder_layers": 0, "attention": "luong"}, "attention needs an encoder and a decoder"),
        ({"similarity": "dot"}, "similarity needs attention"),
        ({"input_feeding": True}, "input_feeding needs attention='luong'"),
        ({"cell": "gru", "activation": "relu"}, "activation is for cell='rnn'"),
        ({"hidden_dim": 30}, "hidden_dim is for a language model of at least two layers, got encoder_layers=2"),
        ({"encoder_layers": 0, "bidirectional": False, "num_layers": 1, "hidden_dim": 30}, "decoder_layers=1"),
        ({"attention": "bahdanau", "weight_dropout": 0.5}, "need all positions at once"),
        ({"attention": "luong", "input_feeding": True, "locked_dropout": True}, "need all positions at once"),
        ({"weight_dropout": 1.0}, "weight_dropout: input should be less than 1, got 1.0"),
        ({"token_dropout": -0.1}, "token_dropout: input should be greater than or equal to 0, got -0.1"),
        ({"input_dropout": 1.0}, "input_dropout: input should be less than 1, got 1.0"),
        ({"cell": "lstn"}, "cell: input should be 'rnn', 'gru' or 'lstm', got 'lstn'"),
    ],
)
def test_invalid_settings_are_errors_of_one_line(settings: dict, words: str):
    with pytest.raises(ConfigError) as error:
        RecurrentConfig.read(settings)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


ALONE = {"encoder_layers": 0, "bidirectional": False, "num_layers": 3}


def test_layers_below_the_last_may_be_wider_and_embeddings_stay_tied():
    model = make(**ALONE, hidden_dim=23)
    assert model.decoder is not None
    assert model.output is not None
    shapes = [tuple(layer[0].shape) for layer in model.initial_state(batch_size=BATCH).hidden]
    assert shapes == [(1, BATCH, 23), (1, BATCH, 23), (1, BATCH, WIDTH)]
    assert model.output.weight is model.embedding.weight
    assert model.hidden_states(torch.randint(VOCAB, (BATCH, TARGET))).shape == (BATCH, TARGET, WIDTH)


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_a_text_read_in_two_windows_has_the_states_of_one(cell: str):
    model, tokens = make(**ALONE, cell=cell, hidden_dim=23), torch.randint(VOCAB, (BATCH, 11))
    first, state = model.hidden_states_from(tokens[:, :4], None)
    second, _ = model.hidden_states_from(tokens[:, 4:], model.restore_state(state.tensors()))
    torch.testing.assert_close(torch.cat([first, second], dim=1), model.hidden_states(tokens))


def test_each_kind_of_dropout_has_its_place():
    """With everything else off, what is dropped shows where it should and not elsewhere."""
    off = {"dropout": 0.0, "input_dropout": 0.0, "layer_dropout": 0.0}
    model, tokens = make(**ALONE).train(), torch.randint(VOCAB, (BATCH, TARGET))
    plain = model.eval()(tokens)
    for name in ("dropout", "input_dropout", "layer_dropout", "token_dropout", "weight_dropout"):
        other = make(**ALONE, **{**off, name: 0.5}).train()
        other.load_state_dict(model.state_dict())
        assert not torch.allclose(other(tokens), plain), name
        torch.testing.assert_close(other.eval()(tokens), plain)
    none = make(**ALONE, **off).train()
    none.load_state_dict(model.state_dict())
    torch.testing.assert_close(none(tokens), plain)


def test_a_dropped_token_has_a_zero_embedding_and_a_logit():
    model = make(**ALONE, dropout=0.0, token_dropout=0.5).train()
    tokens = torch.arange(VOCAB)[None]
    embedded = model._embed(tokens, model.embedding)
    is_dropped = (embedded == 0).all(dim=-1)[0]
    assert 0 < int(is_dropped.sum()) < VOCAB
    assert (model(tokens) != 0).all()
