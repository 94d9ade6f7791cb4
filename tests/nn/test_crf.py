"""The conditional random field against all paths, one by one."""

from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.nn.crf import ConditionalRandomField, sum_over_paths, transition_mask

BATCH, TIME, TAGS = 7, 5, 3
LENGTHS = torch.tensor([5, 1, 3, 2, 5, 4, 1])
NAMES = ["O", "B", "I"]


def may_follow(before: str | None, after: str | None) -> bool:
    """Nothing is inside that did not begin; and, so that ends are forbidden too, nothing ends in what just began."""
    return (after != "I" or before in ("B", "I")) and (before, after) != ("B", None)


def make(*, has_rules: bool = False) -> ConditionalRandomField:
    field = ConditionalRandomField(TAGS, allowed=transition_mask(NAMES, may_follow) if has_rules else None)
    for parameter in field.parameters():
        torch.nn.init.normal_(parameter)
    return field


def all_paths(field: ConditionalRandomField, scores: Tensor) -> tuple[list[tuple[int, ...]], Tensor]:
    """Every sequence of tags of one row without padding, and its score; -inf where it is forbidden."""
    paths, found = list(product(range(TAGS), repeat=len(scores))), []
    for path in paths:
        names = [None, *(NAMES[tag] for tag in path), None]
        is_forbidden = not all(may_follow(*pair) for pair in pairwise(names))
        score = (
            field.starts[path[0]] + field.ends[path[-1]] + sum(row[tag] for row, tag in zip(scores, path, strict=True))
        )
        score = score + sum(field.transitions[pair] for pair in pairwise(path))
        found.append(score - torch.inf if is_forbidden and field.allowed is not None else score)
    return paths, torch.stack(found)


RULES = pytest.mark.parametrize("has_rules", [False, True], ids=["any step", "some forbidden"])


@RULES
def test_likelihoods_are_those_of_all_paths_one_by_one(has_rules: bool):
    field, scores = make(has_rules=has_rules), torch.randn(BATCH, TIME, TAGS)
    for row, length in enumerate(LENGTHS.tolist()):
        paths, path_scores = all_paths(field, scores[row, :length])
        alone = scores[row : row + 1, :length].expand(len(paths), -1, -1)
        ours = field.log_likelihood(alone, torch.tensor(paths))
        can_be = path_scores.isfinite()
        torch.testing.assert_close(ours[can_be], path_scores.log_softmax(0)[can_be])
        assert (ours[~can_be] < -1e5).all()
        torch.testing.assert_close(ours.exp().sum(), torch.tensor(1.0))
        torch.testing.assert_close(field.log_partition(alone)[0], path_scores.logsumexp(0))


@RULES
@pytest.mark.parametrize("time", [1, 2, TIME, 8])
def test_sums_of_pairs_of_steps_are_those_of_one_step_after_the_other(has_rules: bool, time: int):
    field, logits = make(has_rules=has_rules), torch.randn(BATCH, time, TAGS, requires_grad=True)
    lengths = LENGTHS.clamp(max=time)
    allowed = torch.ones(TAGS + 1, TAGS + 1, dtype=torch.bool) if field.allowed is None else field.allowed
    starts, transitions, ends = (
        scores.where(mask, -1e6)
        for scores, mask in (
            (field.starts, allowed[-1, :-1]),
            (field.transitions, allowed[:-1, :-1]),
            (field.ends, allowed[:-1, -1]),
        )
    )
    is_real = torch.arange(1, time) < lengths[:, None]
    paths = sum_over_paths(transitions + logits[:, 1:, None, :], is_real)
    at_once = ((starts + logits[:, 0])[:, :, None] + paths + ends).flatten(1).logsumexp(dim=1)
    by_steps = field.log_partition(logits, lengths)
    torch.testing.assert_close(at_once, by_steps)
    ours, theirs = (torch.autograd.grad(found.sum(), logits)[0] for found in (at_once, by_steps))
    torch.testing.assert_close(ours, theirs)


@RULES
def test_viterbi_finds_the_best_of_all_paths_and_its_score(has_rules: bool):
    field, scores = make(has_rules=has_rules), torch.randn(BATCH, TIME, TAGS)
    for row, found in enumerate(field.viterbi(scores, LENGTHS)):
        paths, path_scores = all_paths(field, scores[row, : LENGTHS[row]])
        best = int(path_scores.argmax())
        assert tuple(found.tags) == paths[best]
        torch.testing.assert_close(torch.tensor(found.score), path_scores[best])


@RULES
def test_the_gradient_of_the_partition_are_the_marginals_summed_over_all_paths(has_rules: bool):
    field, scores = make(has_rules=has_rules), torch.randn(BATCH, TIME, TAGS, requires_grad=True)
    (marginals,) = torch.autograd.grad(field.log_partition(scores, LENGTHS).sum(), scores)
    for row, length in enumerate(LENGTHS.tolist()):
        paths, path_scores = all_paths(field, scores[row, :length])
        is_tag = torch.nn.functional.one_hot(torch.tensor(paths), TAGS).double()
        expected = (path_scores.softmax(0)[:, None, None] * is_tag).sum(0)
        torch.testing.assert_close(marginals[row, :length], expected)
        assert (marginals[row, length:] == 0).all()


@RULES
def test_gradients_are_those_of_finite_differences(has_rules: bool):
    field = make(has_rules=has_rules)
    scores = torch.randn(BATCH, TIME, TAGS, requires_grad=True)
    tags = torch.tensor([path.tags + [0] * (TIME - len(path.tags)) for path in field.viterbi(-scores, LENGTHS)])

    inputs = (scores, *field.parameters())  # which are disturbed in place
    assert torch.autograd.gradcheck(lambda *_: field.log_likelihood(scores, tags, LENGTHS), inputs)


def test_padding_changes_nothing():
    field, scores = make(has_rules=True), torch.randn(BATCH, TIME, TAGS)
    tags = torch.randint(TAGS, (BATCH, TIME))
    padded_scores, padded_tags = torch.randn(BATCH, TIME + 2, TAGS) * 1e3, torch.full((BATCH, TIME + 2), -100)
    for row, length in enumerate(LENGTHS.tolist()):
        padded_scores[row, :length], padded_tags[row, :length] = scores[row, :length], tags[row, :length]
    likelihoods = field.log_likelihood(padded_scores, padded_tags, LENGTHS)
    paths = field.viterbi(padded_scores, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = scores[row : row + 1, :length]
        torch.testing.assert_close(likelihoods[row], field.log_likelihood(alone, tags[row : row + 1, :length])[0])
        assert paths[row].tags == field.viterbi(alone)[0].tags


def test_padding_gets_no_gradient():
    field, scores = make(), torch.randn(BATCH, TIME, TAGS, requires_grad=True)
    is_padding = torch.arange(TIME) >= LENGTHS[:, None]
    tags = torch.zeros(BATCH, TIME, dtype=torch.long)
    field.log_likelihood(scores, tags, LENGTHS).sum().backward()
    assert scores.grad is not None
    assert (scores.grad[is_padding] == 0).all()
    assert (scores.grad[~is_padding] != 0).any(dim=-1).all()


def test_what_is_forbidden_never_comes_out_however_much_the_scores_want_it():
    field = make(has_rules=True)
    scores = torch.randn(61, TIME, TAGS) * 1e4
    scores[..., NAMES.index("I")] += 1e9
    for path in field.viterbi(scores):
        names = [None, *(NAMES[tag] for tag in path.tags), None]
        assert all(may_follow(*pair) for pair in pairwise(names))


def test_what_is_forbidden_has_no_gradient_and_spoils_none():
    field, scores = make(has_rules=True), torch.randn(BATCH, TIME, TAGS)
    field.log_likelihood(scores, torch.zeros(BATCH, TIME, dtype=torch.long), LENGTHS).sum().backward()
    assert field.transitions.grad is not None
    assert field.starts.grad is not None
    assert field.transitions.grad[NAMES.index("O"), NAMES.index("I")] == 0
    assert field.starts.grad[NAMES.index("I")] == 0
    assert all(parameter.grad.isfinite().all() for parameter in field.parameters() if parameter.grad is not None)


def test_where_no_path_is_allowed_the_score_is_minus_infinity():
    nowhere = ConditionalRandomField(TAGS, allowed=torch.zeros(TAGS + 1, TAGS + 1, dtype=torch.bool))
    assert nowhere.viterbi(torch.randn(1, TIME, TAGS))[0].score == -torch.inf


def test_untrained_tags_are_independent():
    scores, tags = torch.randn(BATCH, TIME, TAGS), torch.randint(TAGS, (BATCH, TIME))
    expected = scores.log_softmax(-1).gather(2, tags[:, :, None])[:, :, 0].sum(1)
    field = ConditionalRandomField(TAGS)
    torch.testing.assert_close(field.log_likelihood(scores, tags), expected)


def test_half_precision_is_computed_in_float32():
    field, scores = make(has_rules=True).float(), torch.randn(BATCH, TIME, TAGS).bfloat16()
    tags = torch.tensor([path.tags for path in field.viterbi(scores)])
    with torch.autocast("cpu", torch.bfloat16):
        likelihoods = field.log_likelihood(scores, tags)
    assert likelihoods.dtype == torch.float32
    assert torch.equal(likelihoods, field.log_likelihood(scores.float(), tags))


def test_the_rules_are_no_part_of_what_is_saved():
    assert sorted(make(has_rules=True).state_dict()) == ["ends", "starts", "transitions"]


def test_rules_for_other_tags_are_refused():
    with pytest.raises(ConfigError, match=r"each tag and for the boundary, 6 of each, got the shape \(4, 4\)"):
        ConditionalRandomField(5, allowed=transition_mask(NAMES, may_follow))


def test_marginals_are_sums_over_all_paths():
    crf = ConditionalRandomField(3)
    for parameter in crf.parameters():
        torch.nn.init.normal_(parameter)
    logits, lengths = torch.randn(2, 5, 3), torch.tensor([5, 2])
    found = crf.marginals(logits, lengths)
    for row, length in enumerate(lengths.tolist()):
        expected = torch.zeros(5, 3)
        for path in product(range(3), repeat=length):
            tags = torch.tensor([path])
            share = crf.log_likelihood(logits[row : row + 1, :length], tags).exp().detach()
            for time, tag in enumerate(path):
                expected[time, tag] += share[0]
        torch.testing.assert_close(found[row], expected)


def test_marginals_are_available_in_inference_mode():
    crf = ConditionalRandomField(3)
    with torch.inference_mode():
        found = crf.marginals(torch.zeros(1, 4, 3), torch.tensor([4]))
    torch.testing.assert_close(found, torch.full((1, 4, 3), 1 / 3))
