"""Our decoder against transformers' GPT-2, on random weights and tiny sizes."""

import pytest
import torch

from regard.interop.hf.gpt2 import GPT2
from regard.interop.hf.weights import foreign_weights
from regard.training.checkpoints import weights_of

transformers = pytest.importorskip("transformers")

VOCAB = 31


@pytest.fixture
def theirs(randomized):
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=13, n_layer=3, n_head=2, n_embd=22, n_inner=29, bos_token_id=1, eos_token_id=2
    )
    return randomized(transformers.GPT2LMHeadModel(config))


@torch.no_grad()
def test_same_scores_as_gpt2(theirs, ours_from):
    ours, tokens = ours_from(theirs), torch.randint(VOCAB, (5, 13))

    torch.testing.assert_close(ours(tokens), theirs(tokens).logits)


@torch.no_grad()
def test_steps_give_the_same_scores_as_the_whole(theirs, ours_from):
    ours, tokens = ours_from(theirs), torch.randint(VOCAB, (5, 11))
    expected, state = theirs(tokens).logits, ours.initial_state(batch_size=5)
    first, state = ours.step(tokens[:, :7], state)
    rest = []
    for place in range(7, 11):
        scores, state = ours.step(tokens[:, place : place + 1], state)
        rest.append(scores)

    torch.testing.assert_close(torch.cat([first, *rest], dim=1), expected)


def test_weights_are_converted_back(theirs, ours_from):
    back = foreign_weights(GPT2.weight_names(theirs.config.to_dict()), weights_of(ours_from(theirs)))
    expected = {name: tensor for name, tensor in theirs.state_dict().items() if name != "lm_head.weight"}
    assert back.keys() == expected.keys()
    for name, tensor in back.items():
        assert torch.equal(tensor, expected[name]), name
