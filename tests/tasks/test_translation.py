"""Translation: batches that are filled up to a shape teach the same, and answers come as if each were alone."""

import numpy as np
import pytest
import torch
from torch import nn

from regard.generation.config import GenerationConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.nn.losses import IGNORED
from regard.tasks.objective import Objective
from regard.tasks.translation import Translation, filled, make_batch
from regard.text.tokenizer import train_tokenizer


def test_a_batch_filled_up_to_a_shape_has_the_same_loss_and_gradients():
    tokenizer = train_tokenizer(["abcdefgh"], "characters", 100)
    sources, targets = ([np.array(ids) for ids in tokenizer.encode(texts)] for texts in (["abc", "d"], ["ef", "ghab"]))
    batch = make_batch(sources, targets, tokenizer)
    more = filled(batch, 5, 7, tokenizer)
    assert [tuple(tensor.shape) for tensor in more.tensors() if tensor is not None] == [(5, 8), (5,), (5, 8), (5, 8)]
    assert (more.num_targets, more.num_tokens) == (batch.num_targets, batch.num_tokens)
    assert int((more.target_out != IGNORED).sum()) == batch.num_targets
    shape = {"num_layers": 1, "model_dim": 22, "num_heads": 1, "feedforward_dim": 31, "dropout": 0.0}
    model = Transformer(TransformerConfig.read(shape), tokenizer.vocab_size)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    found = []
    for each in (batch, more):
        loss = Translation().loss(model, each, Objective(label_smoothing=0.1))
        found.append((loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))))
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("beam", [1, 3])
def test_answers_come_in_the_order_of_the_inputs_and_as_if_each_were_alone(beam: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("regard.tasks.translation._SEARCHED_TOKENS", {"cpu": 60})  # several batches
    tokenizer = train_tokenizer(["abcdefgh"], "characters", 100)
    shape = {"num_layers": 1, "model_dim": 22, "num_heads": 1, "feedforward_dim": 31, "dropout": 0.0}
    model = Transformer(TransformerConfig.read(shape), tokenizer.vocab_size).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    inputs = ["abc", "d", "efghabcd", "ab", "hgfedcba", "c", "fe"]
    write = Translation().writer(model, tokenizer, GenerationConfig(beam_size=beam, max_length=6))
    together = write(inputs)
    assert [prediction.input for prediction in together] == inputs
    for text, prediction in zip(inputs, together, strict=True):
        (alone,) = write([text])
        assert alone.output == prediction.output
        assert alone.score == (None if beam == 1 else pytest.approx(prediction.score))
