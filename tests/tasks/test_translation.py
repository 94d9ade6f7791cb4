"""Translation: batches that are filled up to a shape teach the same."""

import numpy as np
import torch
from torch import nn

from regard.models.transformer import Transformer, TransformerConfig
from regard.nn.losses import IGNORED
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
        loss = Translation().loss(model, each, label_smoothing=0.1)
        found.append((loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))))
    torch.testing.assert_close(found[0], found[1])
