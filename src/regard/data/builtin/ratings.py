r"""Preferences of raters whose utility and noise are known.

A prompt names two topics, an answer is a few words. The utility of an answer rises with the distinct words about these
topics up to four, and with a polite word, and falls with words about other topics, repeated words and length:

$$ u = \min(d, 4) + 0.8\,[\text{polite}] - 0.6\,o - 0.5\,r - 0.4 \max(0, n - 8) $$

A rater with temperature $\tau$ prefers answer $a$ to $b$ with probability $\sigma((u(a) - u(b)) / \tau)$. So the true
reward of any answer can be computed, and the accuracy that no model of the preferences can exceed but by chance.
"""

import math
from collections.abc import Iterator, Sequence
from random import Random

from regard.data.builtin import BuiltinData

_TOPICS = {
    "cats": "purr whiskers paws nap kitten meow",
    "rain": "clouds umbrella puddle storm drizzle wet",
    "bread": "flour yeast crust oven dough loaf",
    "trains": "rails station ticket engine wagon platform",
    "gardens": "soil roses seeds spade hedge bloom",
    "music": "melody rhythm chord song drum piano",
    "winter": "snow ice frost sled scarf cold",
    "space": "stars orbit rocket comet planet moon",
}
_WORDS = {topic: tuple(words.split()) for topic, words in _TOPICS.items()}
_FILLERS = ("and", "the", "with", "some", "also", "very")
_POLITE = ("please", "thanks")
_REQUESTS = ("tell me about", "write about", "a note on", "say something on")
_TOPIC_OF = {word: topic for topic, words in _WORDS.items() for word in words}

RATERS = {"ada": 0.5, "ben": 0.7, "cho": 0.9, "dia": 1.2, "eli": 1.8}
"""The temperature of each rater: the higher, the more often the worse answer is preferred."""
_SHARED_EVERY, _RATERS_OF_SHARED = 4, 3
"""Every fourth pair is rated by three raters, so that their agreement can be measured, and the others by one."""
_ON_TOPIC, _OFF_TOPIC, _POLITENESS = 0.42, 0.22, 0.08
"""The probability of each kind of word in an answer; otherwise a filler."""
_SHORTEST, _LONGEST = 2, 9


def generate_ratings(num_rows: int, seed: int) -> Iterator[tuple[str, ...]]:
    """Rows of a prompt, the answer that a rater has chosen, the other one, and the rater."""
    rng, made, pairs = Random(f"ratings {seed}"), 0, 0
    while made < num_rows:
        prompt = _prompt(rng)
        first, second = _answer(rng, prompt), _answer(rng, prompt)
        if first == second:
            continue
        gap = utility(prompt, first) - utility(prompt, second)
        for rater in rng.sample(sorted(RATERS), _RATERS_OF_SHARED if pairs % _SHARED_EVERY == 0 else 1):
            is_first = rng.random() < 1 / (1 + math.exp(-gap / RATERS[rater]))
            yield (prompt, *((first, second) if is_first else (second, first)), rater)
            made += 1
            if made == num_rows:
                return
        pairs += 1


def generate_answers(num_rows: int, seed: int) -> Iterator[tuple[str, ...]]:
    """Texts of a prompt and an answer: what a language model learns before raters are asked."""
    rng = Random(f"answers {seed}")
    for _ in range(num_rows):
        prompt = _prompt(rng)
        yield (f"{prompt}{_answer(rng, prompt)}",)


def utility(prompt: str, answer: str) -> float:
    """The true reward of an answer.

    Example:
        >>> round(utility("write about cats and rain:", " purr nap storm thanks"), 1)
        3.8
        >>> round(utility("write about cats and rain:", " purr purr comet"), 1)
        -0.1
    """
    wanted = {topic for topic in _WORDS if topic in prompt.rstrip(":").split()}
    words = answer.split()
    topics = [_TOPIC_OF.get(word) for word in words]
    distinct = len({word for word, topic in zip(words, topics, strict=True) if topic in wanted})
    others = sum(topic is not None and topic not in wanted for topic in topics)
    is_polite = any(word in _POLITE for word in words)
    repeated = len(words) - len(set(words))
    return min(distinct, 4) + 0.8 * is_polite - 0.6 * others - 0.5 * repeated - 0.4 * max(0, len(words) - 8)


def preference_ceiling(rows: Sequence[Sequence[str]]) -> float:
    """The expected accuracy on these pairs of the better answer by true utility, given the noise of the raters."""
    gaps = [(abs(utility(prompt, one) - utility(prompt, other)), RATERS[rater]) for prompt, one, other, rater in rows]
    return sum(1 / (1 + math.exp(-gap / temperature)) for gap, temperature in gaps) / len(gaps)


def _prompt(rng: Random) -> str:
    first, second = rng.sample(sorted(_WORDS), 2)
    return f"{rng.choice(_REQUESTS)} {first} and {second}:"


def _answer(rng: Random, prompt: str) -> str:
    wanted = [topic for topic in _WORDS if topic in prompt.rstrip(":").split()]
    others = [topic for topic in _WORDS if topic not in wanted]
    words = []
    for _ in range(rng.randint(_SHORTEST, _LONGEST)):
        kind = rng.random()
        if kind < _ON_TOPIC:
            words.append(rng.choice(_WORDS[rng.choice(wanted)]))
        elif kind < _ON_TOPIC + _OFF_TOPIC:
            words.append(rng.choice(_WORDS[rng.choice(others)]))
        else:
            words.append(rng.choice(_POLITE if kind < _ON_TOPIC + _OFF_TOPIC + _POLITENESS else _FILLERS))
    return "".join(f" {word}" for word in words)


RATINGS_DATA = BuiltinData(
    name="ratings",
    description=f"pairs of answers of which {len(RATERS)} raters with known noise have chosen one, by a known utility",
    columns=("prompt", "chosen", "rejected", "rater"),
    num_rows=24_000,
    tokenizer="words",
    generate=generate_ratings,
    true_reward="regard.data.builtin.ratings:utility",
    preference_ceiling=preference_ceiling,
)
ANSWERS_DATA = BuiltinData(
    name="answers",
    description="prompts with answers of any quality: the text for a language model that is then aligned by ratings",
    columns=("text",),
    num_rows=8_000,
    tokenizer="words",
    generate=generate_answers,
)
