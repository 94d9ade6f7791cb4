"""A score, and the line that lets someone else reproduce it.

The signature follows sacrebleu's: Post, "A Call for Clarity in Reporting BLEU
Scores" (2018). https://arxiv.org/abs/1804.08771
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from regard.version import version


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One number, the spread around it, and everything it depended on.

    Proportions (exact match, accuracy) lie in [0, 1]; BLEU and chrF lie in
    [0, 100], as their papers print them.

    Example:
        >>> score = Score(name="accuracy", value=0.9, interval=(0.55, 0.998), settings={"n": 10})
        >>> str(score).replace(version(), "1.2.0")
        'accuracy|n:10|version:1.2.0 = 0.900 [0.550, 0.998]'
    """

    name: str
    value: float
    interval: tuple[float, float] | None = None
    """Ends of the confidence interval; None where the examples do not allow one."""
    settings: Mapping[str, str | int | float] = field(default_factory=dict)
    digits: int = 3
    """Decimals that `str` prints. `value` and `to_json` are never rounded."""

    @property
    def signature(self) -> str:
        """The settings in a fixed order, the version of regard last: `k:v|k:v|version:1.2.0`."""
        pairs = [f"{key}:{value}" for key, value in sorted(self.settings.items())]
        return "|".join([*pairs, f"version:{version()}"])

    def to_json(self) -> dict[str, float | list[float] | str | None]:
        """What is written to files and printed by `--json`; the name is left to be its key."""
        return {
            "value": self.value,
            "interval": None if self.interval is None else list(self.interval),
            "signature": self.signature,
        }

    def __str__(self) -> str:
        spread = ""
        if self.interval is not None:
            low, high = self.interval
            spread = f" [{low:.{self.digits}f}, {high:.{self.digits}f}]"
        return f"{self.name}|{self.signature} = {self.value:.{self.digits}f}{spread}"
