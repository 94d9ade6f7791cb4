r"""Decoding strategies beside each other, on one trained language model.

Holtzman et al., "The Curious Case of Neural Text Degeneration" (2019): likely text repeats itself, and human text is
not the most likely. https://arxiv.org/abs/1904.09751
Welleck et al., "Neural Text Generation with Unlikelihood Training" (2019), section 4: the share of repeated n-grams.
https://arxiv.org/abs/1908.04319
Li et al., "A Diversity-Promoting Objective Function" (2016), section 5.2: distinct n-grams.
https://arxiv.org/abs/1510.03055
Lin, "Divergence Measures Based on the Shannon Entropy" (1991), equation 4.1: the Jensen-Shannon divergence, here of the
distributions of bigrams. Pillutla et al., "MAUVE" (2021), measure such divergences of embedded texts.
https://arxiv.org/abs/2102.01454

Prompts are taken from held-out text. Each strategy continues them by as many tokens, and the text's own continuations
are scored in the same way. Their divergence is from the continuations of other prompts, and so is that of the
strategies: two samples of one source have a divergence above 0.

Without a file, the text is a random walk: a Markov chain of words, each of which may be followed by some others with
probabilities by Zipf's law.

Dimensions: `prompts`, `new` tokens of a continuation.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from torch import Tensor

from regard.data.codecs.text import TextCodec
from regard.data.formats.files import iter_lines
from regard.errors import DataError
from regard.evaluation.intervals import Interval, bootstrap_interval
from regard.generation.beam import BeamSearch
from regard.generation.config import GenerationConfig
from regard.generation.sampling import sample
from regard.lab.decoding import DECODING
from regard.lab.drawing import COLORS, MUTED, label_axes, make_panels
from regard.lab.exercises import TokenBatch, train_on_batches
from regard.lab.study import Study, StudySection, StudyTable
from regard.logging import log_info
from regard.models.transformer import Transformer, TransformerConfig

HUMAN = "the text itself"
STRATEGIES: dict[str, GenerationConfig] = {
    "greedy": GenerationConfig(),
    "beam 4": GenerationConfig(beam_size=4),
    "beam 16": GenerationConfig(beam_size=16),
    "temperature 0.5": GenerationConfig(temperature=0.5),
    "top-p 0.9": GenerationConfig(temperature=1.0, top_p=0.9),
    "temperature 1": GenerationConfig(temperature=1.0),
}
_REPEATED, _DISTINCT, _COMPARED = 4, 3, 2
"""The lengths of the n-grams that repeat, that are distinct, and whose distributions are compared."""
_HELD_OUT = 0.15
_SUCCESSORS = 12
"""Words that may follow a word of the random walk."""


@dataclass(frozen=True, kw_only=True)
class DecodingSizes:
    """The model, and how much it generates; the defaults are those of a quick run."""

    vocab_size: int = 300
    """Vocabulary size of the random walk; for a file, the largest one of its subword tokenizer."""
    num_tokens: int = 60_000
    """Length of the random walk."""
    num_layers: int = 2
    model_dim: int = 64
    num_heads: int = 4
    steps: int = 700
    batch_size: int = 16
    window: int = 64
    learning_rate: float = 3e-3
    num_prompts: int = 60
    prompt_length: int = 8
    new_tokens: int = 40


_FULL = DecodingSizes(
    vocab_size=1_000, num_tokens=400_000, num_layers=4, model_dim=128, steps=3_000, batch_size=32, num_prompts=300,
    new_tokens=80,
)  # fmt: skip


@dataclass(frozen=True)
class Continuations:
    """What one strategy has generated, one list of tokens for each prompt, and their log-probabilities."""

    tokens: list[list[int]]
    log_probabilities: Float[np.ndarray, " prompts"]
    """The mean of each continuation's tokens, in nats."""


def study_decoding(
    *, quick: bool = False, seed: int = 0, data: str | None = None, sizes: DecodingSizes | None = None
) -> Study:
    """Train a small language model, continue prompts with each strategy, and measure the continuations."""
    sizes = sizes or (DecodingSizes() if quick else _FULL)
    torch.manual_seed(seed)
    tokens = random_walk(sizes, seed) if data is None else read_tokens(data, sizes)
    split = int(len(tokens) * (1 - _HELD_OUT))
    model = train_language_model(tokens[:split], sizes)
    prompts, actual, others = cut_prompts(tokens[split:], sizes)
    log_info(f"{len(tokens):,} tokens, {len(prompts):,} prompts of {sizes.prompt_length}")
    found = {HUMAN: Continuations(actual.tolist(), mean_log_probabilities(model, prompts, actual))}
    for name, config in STRATEGIES.items():
        written = continue_prompts(model, prompts, sizes.new_tokens, config, seed=seed)
        found[name] = Continuations(written.tolist(), mean_log_probabilities(model, prompts, written))
        log_info(f"{name}: {found[name].log_probabilities.mean():.2f} nats per token")
    figure, axes = make_panels(3, height=3.6)
    section = _report(found, others.tolist(), axes)
    return DECODING.result(sizes, [section], figure, tokens=len(tokens))


def random_walk(sizes: DecodingSizes, seed: int) -> Int[Tensor, " tokens"]:
    """Tokens of a Markov chain: of the successors of a word, the k-th has a probability in proportion to 1 / k."""
    rng = np.random.default_rng(seed)
    successors = np.array([rng.permutation(sizes.vocab_size)[:_SUCCESSORS] for _ in range(sizes.vocab_size)])
    ranks = 1 / np.arange(1, _SUCCESSORS + 1)
    choices = rng.choice(_SUCCESSORS, sizes.num_tokens, p=ranks / ranks.sum())
    tokens = [0]
    for choice in choices[1:]:
        tokens.append(int(successors[tokens[-1], choice]))
    return torch.tensor(tokens)


def read_tokens(path: str, sizes: DecodingSizes) -> Int[Tensor, " tokens"]:
    """The pieces of words of a text file."""
    text = "\n".join(iter_lines(Path(path)))
    tokenizer = TextCodec.fit([text], kind="bpe", vocab_size=sizes.vocab_size).tokenizer
    tokens = torch.tensor(tokenizer.encode([text])[0])
    needed = 2 * (sizes.prompt_length + sizes.new_tokens) / _HELD_OUT
    if len(tokens) < max(needed, 2 * sizes.window):
        raise DataError(f"{path} has {len(tokens):,} tokens, and the study needs at least {math.ceil(needed):,}")
    return tokens


def train_language_model(tokens: Int[Tensor, " tokens"], sizes: DecodingSizes) -> Transformer:
    """Train a decoder on random windows of the text."""
    config = TransformerConfig(
        encoder_layers=0, decoder_layers=sizes.num_layers, model_dim=sizes.model_dim, num_heads=sizes.num_heads,
        feedforward_dim=4 * sizes.model_dim, block="pre-norm", dropout=0.0, positions="rotary",
    )  # fmt: skip
    model = Transformer(config, sizes.vocab_size)

    def draw() -> TokenBatch:
        starts = torch.randint(len(tokens) - sizes.window, (sizes.batch_size, 1))
        windows = tokens[starts + torch.arange(sizes.window + 1)]
        return TokenBatch(windows[:, :-1], windows[:, 1:])

    optimizer = torch.optim.AdamW(model.parameters(), lr=sizes.learning_rate)
    train_on_batches(model, draw, optimizer, steps=sizes.steps, clip_norm=1.0, description="language model")
    return model.eval()


def cut_prompts(
    tokens: Int[Tensor, " tokens"], sizes: DecodingSizes
) -> tuple[Int[Tensor, "prompts start"], Int[Tensor, "prompts new"], Int[Tensor, "prompts new"]]:
    """Prompts, the text's own continuations of them, and as many continuations of other prompts."""
    length = sizes.prompt_length + sizes.new_tokens
    count = min(sizes.num_prompts, len(tokens) // (2 * length))
    rows = tokens[: 2 * count * length].view(2 * count, length)
    start, rest = rows[:, : sizes.prompt_length], rows[:, sizes.prompt_length :]
    return start[0::2], rest[0::2], rest[1::2]


@torch.inference_mode()
def continue_prompts(
    model: Transformer, prompts: Int[Tensor, "prompts start"], new_tokens: int, config: GenerationConfig, *, seed: int
) -> Int[Tensor, "prompts new"]:
    """The continuation of each prompt, of the same length for all: no token ends it."""
    _, state = model.step(prompts[:, :-1], model.initial_state(batch_size=len(prompts)))
    last, limits = prompts[:, -1:], [new_tokens] * len(prompts)
    if config.beam_size > 1:
        search = BeamSearch(model, end=(), config=config, truncates=True)
        return torch.tensor([some[0].tokens for some in search.search_by_selection(state, last, limits)])
    seeds = [seed * len(prompts) + row for row in range(len(prompts))]
    return torch.tensor(sample(model, state, last, end=-1, limits=limits, seeds=seeds, config=config))


@torch.inference_mode()
def mean_log_probabilities(
    model: Transformer, prompts: Int[Tensor, "prompts start"], written: Int[Tensor, "prompts new"]
) -> Float[np.ndarray, " prompts"]:
    """The mean log-probability of the tokens of each continuation."""
    whole = torch.cat([prompts, written], dim=1)
    scores = model(whole[:, :-1]).log_softmax(dim=-1).gather(2, whole[:, 1:, None])[..., 0]
    return scores[:, prompts.size(1) - 1 :].mean(dim=1).double().numpy()


def repetition(tokens: Sequence[int], n: int = _REPEATED) -> float:
    """The share of n-grams that occurred before in the same text.

    Example:
        >>> repetition([1, 2, 1, 2, 1, 2], 2)
        0.6
    """
    grams = ngrams(tokens, n)
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def distinct(texts: Sequence[Sequence[int]], n: int = _DISTINCT) -> float:
    """The number of different n-grams of all texts, as a share of all n-grams.

    Example:
        >>> distinct([[1, 2, 3], [1, 2, 4]], 2)
        0.75
    """
    grams = [gram for text in texts for gram in ngrams(text, n)]
    return len(set(grams)) / max(1, len(grams))


def divergence(texts: Sequence[Sequence[int]], others: Sequence[Sequence[int]], n: int = _COMPARED) -> float:
    r"""The Jensen-Shannon divergence of the distributions of n-grams, in bits: 0 for equal ones, at most 1.

    $$ \mathrm{JS}(p, q) = H\big(\tfrac{p + q}{2}\big) - \tfrac12 H(p) - \tfrac12 H(q) $$

    Example:
        >>> divergence([[1, 2, 3]], [[1, 2, 3]]), divergence([[1, 2, 3]], [[4, 5, 6]])
        (0.0, 1.0)
    """
    counts = [Counter(gram for text in some for gram in ngrams(text, n)) for some in (texts, others)]
    p, q = ({gram: number / each.total() for gram, number in each.items()} for each in counts)
    middle = {gram: (p.get(gram, 0.0) + q.get(gram, 0.0)) / 2 for gram in {*p, *q}}
    return max(0.0, _entropy(middle) - (_entropy(p) + _entropy(q)) / 2)


def ngrams(tokens: Sequence[int], n: int) -> list[tuple[int, ...]]:
    """All n-grams of a text, in order."""
    return list(zip(*(tokens[start:] for start in range(n)), strict=False))


def _entropy(shares: Mapping[tuple[int, ...], float]) -> float:
    return -sum(share * math.log2(share) for share in shares.values() if share)


def _mean(values: Sequence[float] | Float[np.ndarray, " prompts"]) -> Interval:
    """The mean over prompts, with its bootstrap interval."""
    statistics = np.stack([np.asarray(values, np.float64), np.ones(len(values))], axis=1)
    return float(np.mean(values)), *bootstrap_interval(statistics, lambda sums: float(sums[0] / sums[1]))


def _report(found: Mapping[str, Continuations], others: list[list[int]], axes: Sequence[Axes]) -> StudySection:
    rows, measured = [], {}
    for name, each in found.items():
        repeated = _mean([repetition(tokens) for tokens in each.tokens])
        values = (_mean(each.log_probabilities), repeated, distinct(each.tokens), divergence(each.tokens, others))
        measured[name] = values
        rows.append([name, *values])
    _draw(axes, measured)
    likeliest = max(measured, key=lambda name: measured[name][0][0])
    generated = [name for name in measured if name != HUMAN]
    repeating = max(generated, key=lambda name: measured[name][1][0])
    closest, farthest = (choose(generated, key=lambda name: measured[name][3]) for choose in (min, max))
    human = measured[HUMAN]
    return [
        f"The continuations with the highest likelihood are of {likeliest}: {measured[likeliest][0][0]:.2f} nats per "
        f"token, and {human[0][0]:.2f} for {HUMAN}.",
        f"The most repetitive strategy is {repeating}: {measured[repeating][1][0]:.0%} of its {_REPEATED}-grams "
        f"occurred before in the same continuation, and {human[1][0]:.0%} of those of {HUMAN}.",
        f"The closest to {HUMAN} is {closest} (divergence {measured[closest][3]:.3f}), the farthest {farthest} "
        f"({measured[farthest][3]:.3f}); between two samples of the text it is {human[3]:.3f}.",
    ], [
        StudyTable(
            "continuations by strategy",
            ["strategy", "log-probability of a token", f"repeated {_REPEATED}-grams", f"distinct {_DISTINCT}-grams",
             "divergence from other text"],
            rows,
            "Log-probabilities in nats under the model itself; repeated: the share that occurred before in the same "
            "continuation; in brackets 95 % bootstrap intervals over prompts; divergence: Jensen-Shannon, of "
            f"{_COMPARED}-grams, in bits.",
        )
    ]  # fmt: skip


def _draw(axes: Sequence[Axes], measured: Mapping[str, tuple[Interval, Interval, float, float]]) -> None:
    names = list(measured)
    places = list(range(len(names)))[::-1]
    colors = [MUTED if name == HUMAN else COLORS[0] for name in names]
    likelihoods, repeated = zip(*((values[0], values[1]) for values in measured.values()), strict=True)
    panels = (
        ("Likelihood under the model", "nats per token", likelihoods),
        ("Repetition", f"repeated {_REPEATED}-grams", repeated),
    )
    for panel, (title, label, estimates) in zip(axes, panels, strict=False):
        for place, (middle, low, high), color in zip(places, estimates, colors, strict=True):
            panel.errorbar(
                [middle], [place], xerr=[[max(0.0, middle - low)], [max(0.0, high - middle)]], fmt="o", color=color
            )
        panel.set_yticks(places, labels=names)
        label_axes(panel, title, label, "")
    axes[2].barh(places, [measured[name][3] for name in names], color=colors, height=0.6)
    axes[2].set_yticks(places, labels=names)
    label_axes(axes[2], "Divergence from other text", f"Jensen-Shannon divergence of {_COMPARED}-grams, bits", "")
