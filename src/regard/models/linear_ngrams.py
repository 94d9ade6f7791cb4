r"""A linear model of n-grams beside a network: solved exactly before the first step, and added to the trained network.

Wang & Manning, "Baselines and Bigrams: Simple, Good Sentiment and Topic Classification" (2012), for n-grams of words
that are counted once in each text. Cheng et al., "Wide & Deep Learning for Recommender Systems" (2016),
https://arxiv.org/abs/1606.07792, for a linear model beside a network.

From few rows a network learns less than such a model, which single words and phrases are enough for; together they are
better than each. Its weights are the mean of two logistic regressions, of which the second has a smaller penalty on
features that depend on the class, by naive Bayes; for many classes, or little time, those of a linear SVM (Fan et al.,
"LIBLINEAR: A Library for Large Linear Classification", 2008). A text has two blocks of features, each of unit length:

    n-grams     of tokens that occur in the text, each weighted by its inverse document frequency
    spelling    n-grams of 2 to 5 characters of its tokens, so that words with the same stem share weights

The second is linear in the tokens, so that the model stores one row of weights for each token. With $f$ the network and
$g$ the linear model, the logits of an evaluated model are $a f(x) + b\, g(x)$; $a$ and $b$ are fitted on the validation
rows, and $a = 0$ where the network lowers their loss by less than a standard error. A model in training has $f$ alone.

Dimensions: `batch` texts, `time` positions, `outputs` logits or numbers.
"""

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Integer
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.logging import format_duration, log_info
from regard.nn.losses import IGNORED

Outputs = Literal["classes", "labels", "numbers"]
"""One class of several, any number of labels, or a number."""

_MOST_SLOTS, _MOST_WEIGHTS = 1 << 17, 1 << 22
"""Slots of the table of n-grams, and numbers in it."""
_MULTIPLIER = 1_000_003
"""An n-gram is known by a polynomial of its token ids plus 1, and its slot is the remainder; slot 0 is for none."""
_NONE = -1
_MANY_ROWS = 1_000
"""From this many texts on, an n-gram of a single text is not a feature: faster and better."""
_SHORTEST_SPELLING, _LONGEST_SPELLING = 2, 5
_MOST_SPELLED = 3_000_000
"""Texts with more characters than this have enough examples of each word."""
_INVERSE_PENALTY = 3.0
_MOST_ITERATIONS, _FEWEST_ITERATIONS = 100, 50
"""Of logistic regression; after 10, the accuracy on 45 classes of definitions was 0.50 instead of 0.67."""
MANY_CLASSES = 10
"""For more, an SVM is as accurate as logistic regression, or better, in an eighth of the time or less (docs/log.md)."""
_MOST_PASSES, _FEWEST_PASSES = 1_000, 5
_NANOSECONDS_OF_PASS = 3.0
"""What a pass of the solver of an SVM takes for each feature of a text and each class."""
_MARGIN_SCALE = 4.0
"""Margins of an SVM, times this, have nearly the smallest cross-entropy as logits: 3.8 to 4.9 on three data sets."""
_MOST_TOKENS, _TOKENS_PER_SECOND = 20_000_000, 300_000
"""A part of larger data is used, and with a budget in seconds only as many tokens as are solved for at this speed."""
_NANOSECONDS = 4.0
"""What an iteration of the solver takes for each feature of a text and each output."""
_NEVER = 5.0
"""How much smaller the logit of an output is that no text has."""
_EXPECTED_SCALE, _EXPECTED_ROWS = 0.6, 2.0
"""Few validation rows leave the scales of the network and of the n-grams near this value."""


@dataclass(frozen=True)
class TokenRows:
    """Texts as one array of token ids, and where each begins and ends."""

    ids: Integer[np.ndarray, " tokens"]
    offsets: Int[np.ndarray, " more"]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, numbers: Int[np.ndarray, " chosen"]) -> "TokenRows":
        """The texts with these numbers.

        Example:
            >>> TokenRows(np.array([3, 4, 5, 6, 7, 8]), np.array([0, 1, 3, 5, 6])).take(np.array([0, 2])).ids.tolist()
            [3, 6, 7]
        """
        lengths, starts = np.diff(self.offsets)[numbers], self.offsets[:-1][numbers]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return TokenRows(np.asarray(self.ids)[places], offsets)

    def numbers(self) -> Int[np.ndarray, " tokens"]:
        """The number of the text of each token."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))


class LinearNgrams(nn.Module):
    """The linear model; its weights are buffers, which no optimizer changes.

    Args:
        longest: Tokens of the longest n-grams.
        vocab_size: The number of different tokens.
        num_outputs: The number of classes, labels or numbers.
    """

    keys: Tensor
    squares: Tensor
    table: Tensor
    spelling_squares: Tensor
    spelling: Tensor
    bias: Tensor
    scales: Tensor

    def __init__(self, longest: int, vocab_size: int, num_outputs: int) -> None:
        super().__init__()
        self.longest = longest
        num_slots = min(_MOST_SLOTS, 1 << (_MOST_WEIGHTS // num_outputs).bit_length() - 1)
        self.register_buffer("keys", torch.full((num_slots,), _NONE))
        self.register_buffer("squares", torch.zeros(num_slots))
        self.register_buffer("table", torch.zeros(num_slots, num_outputs))
        self.register_buffer("spelling_squares", torch.zeros(vocab_size))
        self.register_buffer("spelling", torch.zeros(vocab_size, num_outputs))
        self.register_buffer("bias", torch.zeros(num_outputs))
        self.register_buffer("scales", torch.tensor([1.0, 0.0]))

    @property
    def is_solved(self) -> bool:
        return bool((self.keys != _NONE).any())

    def forward(
        self, source: Int[Tensor, "batch time"], lengths: Int[Tensor, " batch"] | None
    ) -> Float[Tensor, "batch outputs"]:
        """The outputs of the linear model."""
        places = torch.arange(source.size(1), device=source.device)
        limits = torch.full_like(source[:, 0], source.size(1)) if lengths is None else lengths
        tokens = source + 1
        key, slots = tokens, []
        for n in range(1, min(self.longest, source.size(1)) + 1):
            if n > 1:
                key = key[:, :-1] * _MULTIPLIER + tokens[:, n - 1 :]
            slot = _slot_of(key, len(self.keys))
            is_known = (places[: key.size(1)] <= limits[:, None] - n) & (self.keys[slot] == key)
            slots.append(torch.where(is_known, slot, 0))
        found = _sum_over_distinct(torch.cat(slots, dim=1), self.table, self.squares)
        inside = torch.where(places < limits[:, None], source, source[:, :1])
        return found + _sum_over_distinct(inside, self.spelling, self.spelling_squares) + self.bias

    def blend(
        self, network: Float[Tensor, "batch outputs"], own: Float[Tensor, "batch outputs"]
    ) -> Float[Tensor, "batch outputs"]:
        """The outputs of the network and of this model, each with its scale."""
        return self.scales[0] * network + self.scales[1] * own

    def solve(
        self,
        rows: TokenRows,
        targets: NDArray[Any],
        spellings: Sequence[str],
        outputs: Outputs,
        *,
        seconds: float | None = None,
    ) -> bool:
        """Fit the model to texts; False where the targets are all the same, or no feature occurs often enough.

        Args:
            rows: The texts.
            targets: A class index, a row of zeros and ones, or a number for each text.
            spellings: The characters of each token, with spaces where a word begins or ends; none for special tokens.
            outputs: What targets are.
            seconds: What it may take, roughly; unset, as long as it needs.
        """
        from scipy import sparse  # imported here, since scipy loads slowly

        before = time.perf_counter()
        most = _MOST_TOKENS if seconds is None else min(_MOST_TOKENS, max(1.0, seconds * _TOKENS_PER_SECOND))
        if len(rows.ids) > most:
            number = math.ceil(len(rows) * most / len(rows.ids))
            kept = np.sort(np.random.default_rng(0).permutation(len(rows))[:number])
            rows, targets = rows.take(kept), targets[kept]
        if len(rows) == 0 or (targets == targets[0]).all():
            return False
        fewest = 2 if len(rows) >= _MANY_ROWS else 1
        keys, ngrams = self._ngrams(rows, fewest)
        spelled, characters = self._spellings(rows, spellings, fewest)
        features: Any = sparse.csr_array(sparse.hstack([ngrams, spelled]), dtype=np.float32)
        if not features.shape[1]:
            return False
        weights, bias = _fit(features, targets, self.table.size(1), outputs, seconds)
        slots = torch.from_numpy(_slot_of(keys, len(self.keys)))
        self.keys[slots] = torch.from_numpy(keys).to(self.keys)
        self.table[slots] = torch.from_numpy(weights[: len(keys)]).to(self.table) * self.squares[slots, None].sqrt()
        self.spelling.copy_(torch.from_numpy(characters @ weights[len(keys) :]))
        self.bias.copy_(torch.from_numpy(bias))
        self.scales.copy_(torch.tensor([0.0, 1.0]))
        log_info(
            f"linear model of {len(keys):,} n-grams of tokens and {characters.shape[1]:,} of characters solved on "
            f"{len(rows):,} rows in {format_duration(time.perf_counter() - before)}"
        )
        return True

    def fit_scales(
        self,
        network: Float[Tensor, "batch outputs"],
        own: Float[Tensor, "batch outputs"],
        targets: Tensor,
        outputs: Outputs,
    ) -> None:
        """Choose the scales with the least loss on these rows; the network has none unless it is clearly of use.

        Args:
            network: The outputs of the network.
            own: The outputs of this model.
            targets: A class index or `IGNORED`, a row of zeros and ones, or a number for each text.
            outputs: What targets are.
        """
        from scipy.optimize import minimize  # imported here, since scipy loads slowly

        both, targets = torch.stack([network, own]).double().cpu(), targets.cpu()

        def row_losses(scales: Tensor) -> Tensor:
            return _losses(torch.einsum("s,sbo->bo", scales, both), targets, outputs)

        def objective(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            scales = torch.from_numpy(values).requires_grad_()
            loss = row_losses(scales).sum() + _EXPECTED_ROWS * (scales - _EXPECTED_SCALE).square().sum()
            loss.backward()
            assert scales.grad is not None
            return loss.item(), scales.grad.numpy()

        def fit(most: float | None) -> Tensor:
            bounds, start = (
                [(0, most), (0, None)],
                np.array([_EXPECTED_SCALE if most is None else most, _EXPECTED_SCALE]),
            )
            return torch.from_numpy(minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds).x)

        with torch.enable_grad(), torch.inference_mode(False):
            together, alone = fit(None), fit(0.0)
        gains = (row_losses(alone) - row_losses(together)).reshape(len(targets), -1).sum(dim=1)
        is_of_use = gains.sum() > gains.std(correction=0) * math.sqrt(len(gains))
        self.scales.copy_(together if is_of_use else alone)

    def _ngrams(self, rows: TokenRows, fewest: int) -> tuple[Int[np.ndarray, " features"], Any]:
        """The keys of the n-grams that are features, and their matrix; their weights are stored."""
        numbers, tokens = rows.numbers(), rows.ids.astype(np.int64) + 1
        key, texts, keys = tokens, [numbers], [tokens]
        for n in range(2, min(self.longest, len(tokens)) + 1):
            key = key[:-1] * _MULTIPLIER + tokens[n - 1 :]
            is_inside = numbers[: len(key)] == numbers[n - 1 :]
            texts.append(numbers[: len(key)][is_inside])
            keys.append(key[is_inside])
        known, columns = np.unique(np.concatenate(keys), return_inverse=True)
        present = _presence(np.concatenate(texts), columns, (len(rows), len(known)))
        counts = np.bincount(present.indices, minlength=len(known))
        order = np.argsort(-counts, kind="stable")
        order = order[counts[order] >= fewest]
        # Of the n-grams of one slot, the most frequent is kept.
        _, first = np.unique(_slot_of(known[order], len(self.keys)), return_index=True)
        kept = order[first]
        weights = _inverse_frequency(counts[kept], len(rows))
        slots = torch.from_numpy(_slot_of(known[kept], len(self.keys)))
        self.squares[slots] = torch.from_numpy(weights**2).to(self.squares)
        return known[kept], _unit_rows(present[:, kept], weights, weights**2)

    def _spellings(self, rows: TokenRows, spellings: Sequence[str], fewest: int) -> tuple[Any, Any]:
        """The matrix of the n-grams of characters, and the weights of those of each token."""
        from scipy import sparse  # imported here, since scipy loads slowly

        lengths = np.array([len(each) for each in spellings])
        if lengths[rows.ids].sum() > _MOST_SPELLED:
            return sparse.csr_array((len(rows), 0)), sparse.csr_array((len(spellings), 0))
        is_used = np.bincount(rows.ids, minlength=len(spellings)) > 0
        names: dict[str, int] = {}
        found = [
            (token, names.setdefault(part, len(names)))
            for token in np.flatnonzero(is_used).tolist()
            for part in _character_ngrams(spellings[token])
        ]
        # A token that no row has is known by the n-grams that it shares with others.
        found += [
            (token, names[part])
            for token in np.flatnonzero(~is_used).tolist()
            for part in _character_ngrams(spellings[token])
            if part in names
        ]
        tokens, parts = np.array(found, np.int64).reshape(-1, 2).T
        spelled = _presence(tokens, parts, (len(spellings), len(names)))
        present = _presence(rows.numbers(), rows.ids.astype(np.int64), (len(rows), len(spellings)))
        counts = np.bincount((present @ spelled).indices, minlength=len(names))
        kept = np.flatnonzero(counts >= fewest)
        weights = spelled[:, kept] * _inverse_frequency(counts[kept], len(rows))[None]
        squares = np.asarray(weights.multiply(weights).sum(axis=1)).ravel()
        self.spelling_squares.copy_(torch.from_numpy(squares))
        return _unit_rows(present, None, squares) @ weights, weights


def _slot_of(keys: Any, num_slots: int) -> Any:
    """The slots of n-grams, arrays or tensors."""
    return 1 + keys % (num_slots - 1)


def _sum_over_distinct(
    indices: Int[Tensor, "batch some"], table: Float[Tensor, "slots outputs"], squares: Float[Tensor, " slots"]
) -> Float[Tensor, "batch outputs"]:
    """The sum of the rows at the distinct indices of each text, divided by the root of the sum of their squares."""
    ordered = indices.sort(dim=1).values
    is_first = F.pad(ordered[:, 1:] != ordered[:, :-1], (1, 0), value=True).to(table.dtype)
    norms = (squares[ordered] * is_first).sum(dim=1).sqrt()
    return (
        torch.einsum("bso,bs->bo", table[ordered], is_first) / norms.clamp(min=torch.finfo(norms.dtype).tiny)[:, None]
    )


def _presence(rows: NDArray[np.int64], columns: NDArray[np.int64], shape: tuple[int, int]) -> Any:
    """A matrix that is 1 at these places, each counted once."""
    from scipy import sparse  # imported here, since scipy loads slowly

    places = np.unique(rows * shape[1] + columns)
    ones = np.ones(len(places), np.float32)
    return sparse.csr_array((ones, (places // max(1, shape[1]), places % max(1, shape[1]))), shape=shape)


def _inverse_frequency(counts: Int[np.ndarray, " features"], num_rows: int) -> Float[np.ndarray, " features"]:
    return np.log((1 + num_rows) / (1 + counts)) + 1


def _unit_rows(present: Any, weights: NDArray[Any] | None, squares: NDArray[Any]) -> Any:
    """The matrix with weighted columns, each row divided by the root of the sum of its squares."""
    lengths = np.sqrt(present @ squares)
    scaled = present if weights is None else present * weights[None]
    return scaled * (1 / np.where(lengths > 0, lengths, 1.0))[:, None]


def _character_ngrams(text: str) -> list[str]:
    """The n-grams of characters of a token, each once and always in the same order.

    Example:
        >>> _character_ngrams(" a ")
        [' a', 'a ', ' a ']
    """
    sizes = range(_SHORTEST_SPELLING, _LONGEST_SPELLING + 1)
    return list(dict.fromkeys(text[start : start + size] for size in sizes for start in range(len(text) - size + 1)))


def _fit(
    features: Any, targets: NDArray[Any], num_outputs: int, outputs: Outputs, seconds: float | None
) -> tuple[Float[np.ndarray, "features outputs"], Float[np.ndarray, " outputs"]]:
    """The weights and biases: for numbers by ridge regression, for classes and labels by logistic regression."""
    from sklearn.linear_model import Ridge

    weights, bias = np.zeros((features.shape[1], num_outputs)), np.zeros(num_outputs)
    per_iteration = 1e-9 * _NANOSECONDS * features.nnz * (num_outputs if num_outputs > 2 else 1)
    if outputs != "numbers":
        per_iteration *= 2  # for the two solutions
    iterations = _MOST_ITERATIONS if seconds is None else min(_MOST_ITERATIONS, int(seconds / per_iteration))
    passes = _MOST_PASSES
    if seconds is not None:
        passes = int(seconds / (1e-9 * _NANOSECONDS_OF_PASS * features.nnz * num_outputs))
    has_many = outputs == "classes" and num_outputs > MANY_CLASSES
    fit_classes = partial(_fit_classes, iterations=iterations)
    if has_many or iterations < _FEWEST_ITERATIONS:
        fit_classes = partial(_fit_margins, passes=passes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fit that ends by its number of iterations is good enough
        if outputs == "numbers":
            ridge = Ridge(solver="lsqr", max_iter=max(_FEWEST_ITERATIONS, iterations)).fit(features, targets)
            return np.asarray(ridge.coef_).reshape(-1, 1), np.asarray(ridge.intercept_).reshape(1)
        if outputs == "labels":
            for number, column in enumerate(targets.T):
                if column.min() == column.max():
                    bias[number] = _NEVER if column[0] else -_NEVER
                else:
                    found, (_, shift) = fit_classes(features, column)
                    weights[:, number], bias[number] = 2 * found[:, 1], 2 * shift
            return weights, bias
        found, shift = fit_classes(features, targets)
    bias[:] = shift.min() - _NEVER
    classes = np.unique(targets)
    weights[:, classes], bias[classes] = found, shift
    return weights, bias


def _fit_classes(
    features: Any, targets: NDArray[Any], *, iterations: int
) -> tuple[Float[np.ndarray, "features classes"], Float[np.ndarray, " classes"]]:
    """The mean of two solutions: with the features as they are, and scaled by how much they depend on the class."""
    from scipy import sparse
    from sklearn.linear_model import LogisticRegression

    solutions = []
    for scales in (np.ones(features.shape[1]), _dependence(features, targets)):
        scaled = sparse.csr_array(features * scales[None], dtype=np.float32)
        model: Any = LogisticRegression(C=_INVERSE_PENALTY, max_iter=iterations).fit(scaled, targets)
        solutions.append((scales[:, None] * model.coef_.T, model.intercept_))
    weights, bias = (np.mean(part, axis=0) for part in zip(*solutions, strict=True))
    return _logits_of_each(weights, bias)


def _fit_margins(
    features: Any, targets: NDArray[Any], *, passes: int
) -> tuple[Float[np.ndarray, "features classes"], Float[np.ndarray, " classes"]]:
    """Those of an SVM for each class against the others."""
    model = LinearSVM(passes).fit(features, targets)
    return _logits_of_each(model.coef_.T, model.intercept_)


class LinearSVM:
    """A linear SVM for each class against the others, whose margins are logits; with the methods of scikit-learn."""

    def __init__(self, passes: int = _MOST_PASSES) -> None:
        from sklearn.svm import LinearSVC

        passes = min(_MOST_PASSES, max(_FEWEST_PASSES, passes))
        self._model: Any = LinearSVC(dual=True, max_iter=passes, random_state=0)  # pyright: ignore[reportArgumentType]  a string or not

    def fit(self, features: Any, targets: Sequence[Any] | NDArray[Any]) -> "LinearSVM":
        self._model.fit(_with_small_indices(features), targets)
        self.classes_, self.coef_ = self._model.classes_, _MARGIN_SCALE * self._model.coef_
        self.intercept_ = _MARGIN_SCALE * self._model.intercept_
        return self

    def predict_proba(self, features: Any) -> Float[np.ndarray, "texts classes"]:
        """The softmax of the logits of more than two classes."""
        from scipy.special import softmax  # imported here, since scipy loads slowly

        return softmax(features @ self.coef_.T + self.intercept_, axis=1)


def _with_small_indices(features: Any) -> Any:
    """The matrix with indices of 32 bits, which the solver needs."""
    from scipy import sparse  # imported here, since scipy loads slowly

    small = sparse.csr_matrix(features, dtype=np.float32)
    small.indices, small.indptr = small.indices.astype(np.int32), small.indptr.astype(np.int32)
    return small


def _logits_of_each(weights: NDArray[Any], bias: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Weights and biases for each of two classes, where there is one logit for the second of them."""
    if weights.shape[1] == 1:
        return weights / 2 * np.array([-1, 1]), bias / 2 * np.array([-1, 1])
    return weights, bias


def _dependence(features: Any, targets: NDArray[Any]) -> Float[np.ndarray, " features"]:
    r"""How much the presence of each feature depends on the class: the root mean square of its naive Bayes weights.

    The weight of a class is $\log (p / \lVert p \rVert_1) - \log (q / \lVert q \rVert_1)$ with $p$ and $q$ one more
    than the number of its texts with the feature, and of the other texts (Wang & Manning 2012, section 2.1).
    """
    from scipy import sparse  # imported here, since scipy loads slowly

    present = sparse.csr_array(features != 0, dtype=np.float32)
    totals = np.asarray(present.sum(axis=0)).ravel()
    classes, squares = np.unique(targets), np.zeros(features.shape[1])
    for number in classes:
        counts = np.asarray(present[np.flatnonzero(targets == number)].sum(axis=0)).ravel()
        inside, outside = 1 + counts, 1 + totals - counts
        squares += (np.log(inside / inside.sum()) - np.log(outside / outside.sum())) ** 2
    return np.sqrt(squares / len(classes))


def _losses(found: Float[Tensor, "batch outputs"], targets: Tensor, outputs: Outputs) -> Tensor:
    match outputs:
        case "classes":
            return F.cross_entropy(found, targets, reduction="none", ignore_index=IGNORED)
        case "labels":
            return F.binary_cross_entropy_with_logits(found, targets.double(), reduction="none")
        case "numbers":
            return (found[:, 0] - targets.double()).square() / 2
