r"""Text whose entropy is known, so that a loss can be held against the least there is.

Each character is drawn given the one before it. Characters follow Zipf's law
(Zipf, *Human Behavior and the Principle of Least Effort* (1949)): with
probability $h$, the habit, the next character $c'$ is drawn by an order that
the last one, $c$, has for itself, and else by the order of all,

$$ p(c' \mid c) = h\, z(\mathrm{rank}_c(c')) + (1 - h)\, z(\mathrm{rank}(c')), \qquad z(r) \propto r^{-s} . $$

So there is always something rarer to learn: first which characters are common,
then what mostly follows them, then what follows those that are rare. Where what
is to be learnt is so distributed, losses fall as powers of the data (Hutter,
"Learning Curve Theory" (2021), https://arxiv.org/abs/2102.04074). No model can
have a lower expected loss than that of the rules themselves.

Dimensions: `rows` of `time` characters, `vocab` characters.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard.lab.exercises import Batch


@dataclass(frozen=True)
class Sample:
    """Rows of text, and how probable its own rules hold them."""

    batch: Batch
    """Each character is asked for, given those before it."""
    entropy: float
    """Nats a character: the loss of whoever knows the rules, on these rows."""


@dataclass(frozen=True, eq=False)
class Language:
    """Which character follows which."""

    first: Float[Tensor, " vocab"]
    """How probable each character is at the beginning of a row."""
    following: Float[Tensor, "vocab vocab"]
    """How probable each character is behind each."""

    @property
    def entropy(self) -> float:
        """Nats a character, over endless text."""
        # What is left of any beginning: a thousand steps forget it, whatever the habit.
        common = torch.linalg.matrix_power(self.following, 1_000)[0]
        return -float((common[:, None] * self.following * self.following.log()).sum())

    def draw(self, num_rows: int, length: int, rng: torch.Generator) -> Sample:
        """Rows of `length` characters to be foretold, behind one that is given."""
        drawn = [torch.multinomial(self.first, num_rows, replacement=True, generator=rng)]
        total = 0.0
        for _ in range(length):
            chances = self.following[drawn[-1]]
            drawn.append(torch.multinomial(chances, 1, generator=rng)[:, 0])
            total -= float(chances.gather(1, drawn[-1][:, None]).log().sum())
        text = torch.stack(drawn, dim=1)
        return Sample(Batch(text[:, :-1].contiguous(), text[:, 1:].contiguous()), total / (num_rows * length))


def make_language(vocab_size: int, *, habit: float, exponent: float, rng: torch.Generator) -> Language:
    """Invent a language.

    Args:
        vocab_size: How many characters there are.
        habit: $h$, how often a character has followers of its own.
        exponent: $s$, how fast characters get rarer by their rank.
        rng: Decides who follows whom.
    """
    common = torch.arange(1, vocab_size + 1, dtype=torch.float64) ** -exponent
    common /= common.sum()
    # The rank of each character behind each: one shuffled order a row.
    ranks = torch.rand(vocab_size, vocab_size, generator=rng, dtype=torch.float64).argsort(dim=1)
    return Language(common, habit * common[ranks] + (1 - habit) * common)
