"""Linearized trees, and the constraint that makes every sequence a tree over the words of the input."""

from itertools import product

import pytest
import torch

from regard.data.codecs.trees import TreeCodec
from regard.data.formats.trees import parse_tree
from regard.generation.beam import BeamSearch
from regard.generation.config import GenerationConfig
from regard.generation.sampling import sample
from regard.models.transformer import Transformer, TransformerConfig
from regard.tasks.parsing import linear
from regard.tasks.parsing.linear import CLOSE, END, START, Actions, TreeConstraint, action_limit

TREES = ["(S (NP (DT a) (NN b)) (S (VP (VB c))))", "(NP (NN a))", "(NN a)", "(S (NP (NN a)) (NN b) (NN c))"]
CODEC = TreeCodec.fit(map(parse_tree, TREES))
ACTIONS = Actions.of(CODEC)


def allowed_after(prefix: tuple[int, ...], num_words: int) -> set[int]:
    constraint = TreeConstraint.initial(torch.tensor([num_words]), ACTIONS)
    for action in prefix:
        constraint = constraint.advance(torch.tensor([action]))
    return set(constraint.allowed()[0].nonzero()[:, 0].tolist())


def is_tree(actions: tuple[int, ...], num_words: int) -> bool:
    """Whether a sequence is a tree over so many words, by its definition: no empty bracket, one outermost node."""
    depth, words, is_new = 0, 0, False
    for place, action in enumerate(actions):
        if place and depth == 0:
            return False
        if action == CLOSE:
            if is_new or depth == 0:
                return False
            depth -= 1
        elif action < ACTIONS.first_tag:
            depth += 1
        else:
            words += 1
        is_new = CLOSE < action < ACTIONS.first_tag
    return depth == 0 and words == num_words


@pytest.mark.parametrize("text", TREES)
def test_a_tree_is_its_actions_again(text: str):
    tree = parse_tree(text)
    actions = ACTIONS.linearize(CODEC.encode_tree(tree), ["", *CODEC.labels])
    assert is_tree(tuple(actions), len(tree.leaves()))
    assert str(ACTIONS.tree(actions, tree.words())) == text


@pytest.mark.parametrize("num_words", [1, 2, 3])
def test_the_constraint_allows_every_tree_within_the_limit_and_nothing_else(
    num_words: int, monkeypatch: pytest.MonkeyPatch
):
    most = 7
    monkeypatch.setattr(linear, "action_limit", lambda count: most)
    kinds = [CLOSE, CLOSE + 1, ACTIONS.first_tag]  # one label and one tag stand for all
    trees = {
        (*actions, END)
        for length in range(1, most)
        for actions in product(kinds, repeat=length)
        if is_tree(actions, num_words)
    }
    found, prefixes = set(), [()]
    while prefixes:
        prefix = prefixes.pop()
        allowed = allowed_after(prefix, num_words) & {*kinds, END}
        assert allowed, "a prefix that the constraint allows can be continued"
        found |= {(*prefix, END)} if END in allowed else set()
        prefixes += [(*prefix, action) for action in allowed - {END}]
    assert found == trees


@pytest.mark.parametrize(("beam_size", "temperature"), [(1, 0.0), (1, 1.7), (3, 0.0)])
def test_whatever_a_decoder_prefers_its_output_is_a_tree_of_all_words(beam_size: int, temperature: float):
    config = TransformerConfig(
        num_layers=1, model_dim=10, num_heads=1, feedforward_dim=11, encoder_layers=0, dropout=0.0
    )
    model = Transformer(config, len(ACTIONS)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=1.0)
    num_words = torch.tensor([1, 2, 5, 11, 3])
    start, limits = torch.full((5, 1), START), [action_limit(count) for count in num_words.tolist()]
    generation = GenerationConfig(beam_size=beam_size, temperature=temperature)
    state, constraint = model.initial_state(batch_size=5), TreeConstraint.initial(num_words, ACTIONS)
    if beam_size > 1:
        found = BeamSearch(model, end=END, config=generation).search(state, start, limits, constraint=constraint)
        sequences = [each.tokens for some in found for each in some]
        counts = [count for count, some in zip(num_words.tolist(), found, strict=True) for _ in some]
    else:
        sequences = sample(
            model, state, start, end=END, limits=limits, seeds=[1, 2, 3, 5, 7], config=generation, constraint=constraint
        )
        counts = num_words.tolist()
    for actions, count in zip(sequences, counts, strict=True):
        assert is_tree(tuple(actions), count)
