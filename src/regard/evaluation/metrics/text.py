"""Metrics of generated text against references: exact match, BLEU, chrF, and error rates of words and characters.

BLEU and chrF are sacrebleu's own, and so are the fields of their signatures. An error rate is the edit distance
(Levenshtein, 1966) divided by the length of the reference; the distance is computed by the bit-parallel algorithm of
Hyyrö, "A Bit-Vector Algorithm for Computing Levenshtein and Damerau Edit Distances" (2003).
"""

import re
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float
from sacrebleu.metrics import bleu as sacrebleu_bleu
from sacrebleu.metrics import chrf as sacrebleu_chrf

from regard.errors import ConfigError, DataError
from regard.evaluation.counts import Counts, check_equal_lengths, count_right, ratio
from regard.evaluation.examples import Examples
from regard.evaluation.registry import Metric, on_pairs

References = Sequence[str] | Sequence[Sequence[str]]
"""For each prediction its reference, or a list of references of which each is right."""

BleuTokenizer = Literal["13a", "intl", "zh", "char", "none"]
"""How sacrebleu splits text into words: its tokenizers that need neither downloads nor further packages."""

_MATCHING_4GRAMS = 5
"""The index of the matching 4-grams in sacrebleu's statistics: two lengths, then the matches by order."""


def count_exact_match(predictions: Sequence[str], references: References) -> Counts:
    """Count the predictions that equal their reference, or one of them.

    Equal means the same characters: case, spaces and Unicode form all count.

    Example:
        >>> count_exact_match(["2024-05-01", "1999-12-31"], ["2024-05-01", "1999-12-30"]).value
        0.5
    """
    check_equal_lengths(predictions, references)
    accepted = reference_lists(references)
    right = [prediction in lines for prediction, lines in zip(predictions, accepted, strict=True)]
    return count_right(right, {"nrefs": num_references(accepted)})


def count_bleu(predictions: Sequence[str], references: References, *, tokenizer: BleuTokenizer = "13a") -> Counts:
    """Count the lengths and n-gram matches of corpus BLEU, in [0, 100], by sacrebleu.

    N-grams up to 4, mixed case, exponential smoothing. Papineni et al., "BLEU: a Method for Automatic Evaluation of
    Machine Translation" (2002). https://aclanthology.org/P02-1040

    It is 0 when no prediction has 4 tokens, however right they are, and a perfect
    score can exceed 100 by a rounding error. The default tokenizer splits words
    at spaces: for Chinese use `zh`, for other scripts without spaces `char`.
    When every prediction is perfect the bootstrap interval is [100, 100], which does
    not show how rare errors are; that of exact match does.

    Example:
        >>> predictions = ["the dog runs home", "a cat sat here now"]
        >>> counts = count_bleu(predictions, ["the dog runs home", "a cat sat here today"])
        >>> round(counts.value, 2), counts.settings["tok"]
        (79.84, '13a')
    """
    if tokenizer not in get_args(BleuTokenizer):
        raise ConfigError(f"tokenizer must be one of {', '.join(get_args(BleuTokenizer))}, got {tokenizer!r}")
    return count_with_sacrebleu(make_bleu(tokenizer=tokenizer), predictions, references)


_TOKENIZERS: dict[str, Any] = {}


def make_bleu(*, tokenizer: BleuTokenizer = "13a", longest: int = 4) -> sacrebleu_bleu.BLEU:
    """BLEU as sacrebleu computes it, with n-grams up to `longest`."""
    # Without `force`, sacrebleu logs advice on its own parameters where predictions look tokenized.
    metric = sacrebleu_bleu.BLEU(tokenize=tokenizer, max_ngram_order=longest, force=True)
    # Each tokenizer caches its texts for as long as the process runs: a new one for each score would keep them all.
    metric.tokenizer = _TOKENIZERS.setdefault(tokenizer, metric.tokenizer)
    return metric


def count_chrf(predictions: Sequence[str], references: References) -> Counts:
    """Count the character n-grams of corpus chrF2, in [0, 100], by sacrebleu: n up to 6, without spaces.

    Popović, "chrF: character n-gram F-score for automatic MT evaluation" (2015).
    https://aclanthology.org/W15-3049

    Recall has twice the weight of precision (`beta:2`). It needs no tokenizer, so it
    applies to every script and to languages with rich morphology. Of several
    references the best match counts.

    Example:
        >>> round(count_chrf(["the dog ran home", "hello"], ["the dog runs home", "hello"]).value, 2)
        58.31
    """
    return count_with_sacrebleu(sacrebleu_chrf.CHRF(), predictions, references)


def count_word_errors(predictions: Sequence[str], references: References) -> Counts:
    """Count words that are inserted, deleted or replaced, and the words of the references: the word error rate.

    Words are separated by white space, so that for pronunciations it is the phoneme error rate. It can exceed 1.

    Example:
        >>> count_word_errors(["K AE T S"], ["K AE T"]).value
        0.3333333333333333
    """
    return _count_errors(predictions, references, str.split)


def count_character_errors(predictions: Sequence[str], references: References) -> Counts:
    """Count characters that are inserted, deleted or replaced, and those of the references: the character error rate.

    Example:
        >>> count_character_errors(["kitten"], ["sitting"]).value
        0.42857142857142855
    """
    return _count_errors(predictions, references, list)


def levenshtein_distance(first: Sequence[str], second: Sequence[str]) -> int:
    """The smallest number of insertions, deletions and replacements that turn one sequence into the other.

    Example:
        >>> levenshtein_distance("kitten", "sitting")
        3
    """
    if not first:
        return len(second)
    places: dict[str, int] = {}
    for place, item in enumerate(first):
        places[item] = places.get(item, 0) | 1 << place
    everywhere, last = (1 << len(first)) - 1, 1 << (len(first) - 1)
    # Bits of the places where the distance of the prefixes of `first` grows by one, or shrinks by one.
    grows, shrinks, distance = everywhere, 0, len(first)
    for item in second:
        equal = places.get(item, 0)
        vertical = equal | shrinks
        horizontal = (((equal & grows) + grows) ^ grows) | equal
        up, down = shrinks | (~(horizontal | grows) & everywhere), grows & horizontal
        distance += bool(up & last) - bool(down & last)
        up, down = (up << 1 | 1) & everywhere, (down << 1) & everywhere
        grows, shrinks = down | (~(vertical | up) & everywhere), up & vertical
    return distance


def _count_errors(predictions: Sequence[str], references: References, split: Callable[[str], Sequence[str]]) -> Counts:
    """Errors and lengths; of several references, that with the lowest error rate counts."""
    check_equal_lengths(predictions, references)
    accepted = reference_lists(references)
    rows = []
    for prediction, lines in zip(predictions, accepted, strict=True):
        parts = split(prediction)
        pairs = [(levenshtein_distance(parts, split(line)), len(split(line))) for line in lines]
        rows.append(min(pairs, key=lambda pair: pair[0] / max(1, pair[1])))
    return Counts(
        statistics=np.array(rows, np.int64), compute=_error_rate, settings={"nrefs": num_references(accepted)}
    )


def _error_rate(sums: Float[np.ndarray, " statistics"]) -> float:
    return float(sums[0] / max(1.0, sums[1]))


def _only_smoothed(sums: Float[np.ndarray, " statistics"]) -> str | None:
    if sums[_MATCHING_4GRAMS]:
        return None
    return "no 4-gram of any output matches its reference, so BLEU depends on its smoothing only"


def count_format(outputs: Sequence[str], pattern: str) -> Counts:
    """Count the outputs that match a regular expression as a whole.

    Example:
        >>> count_format(["2024-05-01", "May 1"], r"[0-9]{4}-[0-9]{2}-[0-9]{2}").value
        0.5
    """
    compiled = re.compile(pattern, re.DOTALL)
    return count_right([compiled.fullmatch(output) is not None for output in outputs], {"format": pattern})


def _count_format_of(examples: Examples) -> Counts:
    (outputs,) = examples.require("outputs")
    return count_format(outputs, str(examples.settings.get("format", ".*")))


def _mean_reward(examples: Examples) -> Counts:
    (rewards,) = examples.require("rewards")
    return Counts(statistics=np.column_stack([np.asarray(rewards, np.float64), np.ones(len(rewards))]), compute=ratio)


MEAN_REWARD = Metric(name="mean_reward", label="Mean reward", counter=_mean_reward, needs=("rewards",), digits=None)
"""The mean reward of answers that a model samples, in the unit of the reward."""
FORMAT_MATCH = Metric(
    name="format_match",
    label="Format",
    counter=_count_format_of,
    needs=("outputs",),
)
EXACT_MATCH = Metric(name="exact_match", label="Exact match", counter=on_pairs(count_exact_match))
BLEU = Metric(name="bleu", label="BLEU", counter=on_pairs(count_bleu), digits=2, find_artifact=_only_smoothed)
CHRF = Metric(name="chrf", label="chrF", counter=on_pairs(count_chrf), digits=2)
WORD_ERROR_RATE = Metric(
    name="word_error_rate", label="Word error rate", counter=on_pairs(count_word_errors), higher_is_better=False
)
CHARACTER_ERROR_RATE = Metric(
    name="character_error_rate",
    label="Character error rate",
    counter=on_pairs(count_character_errors),
    higher_is_better=False,
)


def count_with_sacrebleu(
    metric: sacrebleu_bleu.BLEU | sacrebleu_chrf.CHRF, predictions: Sequence[str], references: References
) -> Counts:
    """The counts of one of sacrebleu's metrics, whose score is a function of their sums.

    `Metric.corpus_score` calls these two methods in sequence; calling them
    separately keeps the counts. Tests compare the value with `corpus_score`.
    """
    check_equal_lengths(predictions, references)
    streams = _reference_streams(reference_lists(references))
    statistics = np.array(
        # sacrebleu's annotation lacks the None that its docstring allows.
        metric._extract_corpus_statistics(predictions, streams)  # pyright: ignore[reportArgumentType]
    )
    settings = {key: value for key, value in metric.get_signature().info.items() if value is not None}
    settings["sacrebleu"] = settings.pop("version")
    if isinstance(metric, sacrebleu_chrf.CHRF):
        settings["beta"] = metric.beta  # sacrebleu has it in the name, chrF2
    return Counts(
        statistics=statistics,
        compute=lambda sums: metric._compute_score_from_stats(sums.tolist()).score,
        settings=settings,
    )


def reference_lists(references: References) -> list[Sequence[str]]:
    """The accepted references of each prediction."""
    lists = [[item] if isinstance(item, str) else item for item in references]
    for index, accepted in enumerate(lists):
        if len(accepted) == 0:
            raise DataError(f"each prediction needs at least one reference, got none for prediction {index}")
    return lists


def _reference_streams(lists: Sequence[Sequence[str]]) -> list[list[str | None]]:
    """The transpose, as sacrebleu expects it; None where a prediction has fewer references."""
    return [list(stream) for stream in zip_longest(*lists)]


def num_references(lists: Sequence[Sequence[str]]) -> int | str:
    """The number of references of each prediction as in sacrebleu's signature: a number, or `var`."""
    counts = {len(accepted) for accepted in lists}
    return counts.pop() if len(counts) == 1 else "var"
