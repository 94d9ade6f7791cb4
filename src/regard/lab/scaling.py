"""Loss against parameters, data and compute, and what the laws of it foretell of a larger model.

Small Transformers of several widths each read texts of several lengths, once,
in a language of which the least loss is known (`regard.lab.scaling_language`).
The laws (`regard.lab.scaling_laws`) are fitted to these runs, and tried on a
model that is larger than all of them, with as much data and with more.

The rate of learning falls to 0 over the length of each run by itself: a loss on
the way of a longer run would be worse than what its data allows (Hoffmann et
al. 2022, section 3.1).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.data.permutation import mix
from regard.lab import STUDIES
from regard.lab.exercises import Batch, fit, loss_of
from regard.lab.scaling_figure import compose
from regard.lab.scaling_language import Language, Sample, make_language
from regard.lab.scaling_laws import Law, PowerLaw, fit_law, fit_power, frontier, interval, misfit, resampled
from regard.lab.study import Cell, Study, Table
from regard.logging import log_info
from regard.models.transformer import Transformer, TransformerConfig

FEWEST = 2
"""Different sizes, and amounts of data, without which no exponent is fitted."""
_LANGUAGE, _TEST, _RUN = range(3)
"""What random numbers are for."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The grid of runs, and the larger ones that the laws are tried on."""

    widths: tuple[int, ...]
    """Of the models that laws are fitted to."""
    steps: tuple[int, ...]
    """Batches read once, of the runs that laws are fitted to."""
    larger_width: int
    larger_steps: tuple[int, ...]
    """Of the runs that are to be foretold."""
    num_seeds: int
    num_layers: int = 2
    num_heads: int = 2
    length: int = 64
    batch_size: int = 8
    learning_rate: float = 1e-2
    vocab_size: int = 64
    habit: float = 0.8
    exponent: float = 1.5
    """Of the language."""
    num_test_rows: int = 512
    num_resamples: int


QUICK = Sizes(
    widths=(8, 12, 20, 32), steps=(100, 200, 400, 800), larger_width=48, larger_steps=(800, 1_600), num_seeds=1,
    num_resamples=200,
)  # fmt: skip
FULL = Sizes(
    widths=(8, 12, 20, 32, 48, 72), steps=(200, 400, 800, 1_600, 3_200), larger_width=112,
    larger_steps=(3_200, 6_400), num_seeds=3, num_resamples=1_000,
)  # fmt: skip


@dataclass(frozen=True)
class Trained:
    """One run: what it had, and what came of it."""

    seed: int
    width: int
    parameters: int
    characters: int
    """Read in training, each once."""
    operations: float
    """Additions and multiplications of its matrix products, counted."""
    loss: float

    @property
    def compute(self) -> float:
        """6 N D, what its operations are by rule of thumb, and what the laws go by."""
        return 6.0 * self.parameters * self.characters


@dataclass(frozen=True)
class Laws:
    """What was fitted to runs."""

    whole: Law
    by_size: PowerLaw
    """Of the runs with the most data."""
    by_data: PowerLaw
    """Of the runs with the most parameters."""
    by_compute: PowerLaw
    """Of the runs than which none of less compute is better."""


def study(*, quick: bool, seed: int) -> Study:
    """Train the grid, fit the laws, and try them on a larger model."""
    return investigate(QUICK if quick else FULL, seed=seed)


def investigate(sizes: Sizes, *, seed: int) -> Study:
    language = make_language(
        sizes.vocab_size, habit=sizes.habit, exponent=sizes.exponent, rng=_generator(seed, _LANGUAGE)
    )
    test = language.draw(sizes.num_test_rows, sizes.length, _generator(seed, _TEST))
    seeds = range(sizes.num_seeds)
    train_one = partial(train, language, test, sizes, seed=seed)
    runs = [train_one(*of, number=number) for number, *of in product(seeds, sizes.widths, sizes.steps)]
    larger = [train_one(sizes.larger_width, steps, number=n) for n, steps in product(seeds, sizes.larger_steps)]
    laws = fit_all(runs)
    drawn = resampled(
        lambda chosen: fit_all([runs[i] for i in chosen], start=laws.whole),
        len(runs),
        num_resamples=sizes.num_resamples,
        rng=np.random.default_rng(seed),
        is_enough=lambda chosen: is_enough([runs[i] for i in chosen]),
    )
    return Study(
        name="scaling",
        title="Scaling laws: loss against parameters, data and compute",
        claim=STUDIES["scaling"],
        findings=[
            *_findings(laws, drawn, test.entropy),
            *_form_findings(laws, runs),
            *_extrapolations(laws, drawn, runs, larger, test.entropy),
            _compute_finding([*runs, *larger]),
        ],
        tables=[_law_table(laws, drawn), _larger_table(laws, drawn, larger), _run_table(runs, laws)],
        figure=compose(runs, larger, laws, drawn, entropy=test.entropy),
        settings={**asdict(sizes), "entropy": test.entropy},
    )


def train(language: Language, test: Sample, sizes: Sizes, width: int, steps: int, *, number: int, seed: int) -> Trained:
    """One model on so many fresh batches, and its loss on text that it has not read."""
    torch.manual_seed(mix(seed, _RUN, number, width, steps))
    config = TransformerConfig(
        encoder_layers=0, decoder_layers=sizes.num_layers, model_dim=width, num_heads=sizes.num_heads,
        feedforward_dim=4 * width, activation="gelu", block="pre-norm", dropout=0.0, positions="rotary",
    )  # fmt: skip
    model = Transformer(config, sizes.vocab_size)
    rng = _generator(seed, _RUN, number, width, steps)
    text = language.draw(steps * sizes.batch_size, sizes.length, rng).batch
    batches = map(Batch, text.inputs.split(sizes.batch_size), text.targets.split(sizes.batch_size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=sizes.learning_rate, fused=True)
    what = f"width {width}, {steps} steps"
    fit(model, lambda: next(batches), optimizer, steps=steps, clip_norm=1.0, what=what)
    with torch.inference_mode():
        loss = float(loss_of(model, test.batch))
    log_info(f"{what}, seed {seed + number}: loss {loss:.3f}, of which {test.entropy:.3f} is the language's")
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    operations = steps * flops_per_step(model, sizes.batch_size, sizes.length)
    return Trained(seed + number, width, num_parameters, text.inputs.numel(), operations, loss)


def flops_per_step(model: nn.Module, num_rows: int, length: int) -> float:
    """Of the matrix products, forwards and, at twice the cost, backwards (Kaplan et al. 2020, section 2.1)."""
    tokens = torch.zeros(num_rows, length, dtype=torch.long)
    # As plain products, which can be counted: the fused kernel of a CPU does not say what it multiplies.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        model(tokens)
    return 3.0 * counter.get_total_flops()


def fit_all(runs: Sequence[Trained], *, start: Law | None = None) -> Laws:
    """Each law, from the runs that it is about."""
    parameters, characters, compute, losses = (
        np.array([getattr(run, name) for run in runs], dtype=np.float64)
        for name in ("parameters", "characters", "compute", "loss")
    )
    most_data, most_parameters = characters == characters.max(), parameters == parameters.max()
    best = frontier(compute, losses)
    return Laws(
        fit_law(parameters, characters, losses, start=start),
        fit_power(parameters[most_data], losses[most_data]),
        fit_power(characters[most_parameters], losses[most_parameters]),
        fit_power(compute[best], losses[best]),
    )


def is_enough(runs: Sequence[Trained]) -> bool:
    """Whether runs, drawn with replacement, still say how the loss goes with size, with data and with compute."""
    most_characters, most_parameters = max(run.characters for run in runs), max(run.parameters for run in runs)
    sizes = {run.parameters for run in runs if run.characters == most_characters}
    amounts = {run.characters for run in runs if run.parameters == most_parameters}
    best = frontier(np.array([run.compute for run in runs]), np.array([run.loss for run in runs]))
    return min(len(sizes), len(amounts), len(best)) >= FEWEST


def _generator(*numbers: int) -> torch.Generator:
    return torch.Generator().manual_seed(mix(*numbers) >> 1)


def _around(laws: Laws, drawn: Sequence[Laws]) -> dict[str, tuple[float, float, float]]:
    """Each number of the laws with its interval, by what it is called."""
    numbers = {
        "E": lambda of: of.whole.floor,
        "alpha": lambda of: of.whole.size_exponent,
        "beta": lambda of: of.whole.data_exponent,
        "share of size": lambda of: of.whole.share_of_size,
        "size alone": lambda of: of.by_size.exponent,
        "data alone": lambda of: of.by_data.exponent,
        "compute alone": lambda of: of.by_compute.exponent,
    }
    return {name: (number(laws), *interval([number(each) for each in drawn])) for name, number in numbers.items()}


def _told(number: tuple[float, float, float]) -> str:
    return "{:.2f} [{:.2f}, {:.2f}]".format(*number)


def _findings(laws: Laws, drawn: Sequence[Laws], entropy: float) -> list[str]:
    numbers = _around(laws, drawn)
    _, low, high = numbers["E"]
    holds = "holds" if low <= entropy <= high else "does not hold"
    share, low_share, high_share = numbers["share of size"]
    apart = "cannot be told from" if low_share <= 0.5 <= high_share else "is not"
    return [
        f"Fitted to all runs, L = E + A / N^alpha + B / D^beta has alpha = {_told(numbers['alpha'])}, beta = "
        f"{_told(numbers['beta'])} and E = {_told(numbers['E'])} nats a character (95 % intervals, over resampled "
        f"runs); the language's own entropy is {entropy:.2f}, which the interval of E {holds}.",
        f"As single power laws, the loss falls as N^-x with x = {_told(numbers['size alone'])} at the most data, as "
        f"D^-x with x = {_told(numbers['data alone'])} at the most parameters, and along the best runs as C^-x with "
        f"x = {_told(numbers['compute alone'])}.",
        f"By the fit, the best number of parameters grows with compute to the power of {share:.2f} "
        f"[{low_share:.2f}, {high_share:.2f}], which {apart} the half that Hoffmann et al. found.",
    ]


def _form_findings(laws: Laws, runs: Sequence[Trained]) -> list[str]:
    """Whether the law is of the right form, where seeds tell."""
    found = misfit([(run.parameters, run.characters, run.loss) for run in runs], laws.whole)
    if found is None:
        return []
    verdict = (
        "the form of the law does not hold here, and intervals that suppose it are too narrow"
        if found.p_value < 0.05
        else "no more than luck explains"
    )
    return [
        f"Losses of runs that differ in their seed alone spread by {100 * found.spread:.2g} %, and their means lie "
        f"{100 * found.off:.2g} % off the law (F test of its form, p {_chance(found.p_value)}): {verdict}."
    ]


def _chance(p_value: float) -> str:
    """The test supposes errors as wide everywhere, which they are not quite: more digits would say too much."""
    return "< 0.001" if p_value < 0.001 else f"= {p_value:.2g}"


def _foretold(laws: Laws, drawn: Sequence[Laws], run: Trained) -> list[tuple[float, float, float]]:
    """What the law of size and data, and that of compute alone, say of a run."""
    both = [lambda of: of.whole.loss(run.parameters, run.characters), lambda of: of.by_compute.loss(run.compute)]
    return [(law(laws), *interval([law(each) for each in drawn])) for law in both]


def _extrapolations(
    laws: Laws, drawn: Sequence[Laws], runs: Sequence[Trained], larger: Sequence[Trained], entropy: float
) -> list[str]:
    findings = []
    most_parameters, most_characters = max(run.parameters for run in runs), max(run.characters for run in runs)
    for characters in sorted({run.characters for run in larger}):
        some = [run for run in larger if run.characters == characters]
        measured = sum(run.loss for run in some) / len(some)
        whole, alone = _foretold(laws, drawn, some[0])
        holds = "holds" if whole[1] <= measured <= whole[2] else "does not hold"
        findings.append(
            f"A model {some[0].parameters / most_parameters:.1f} times the largest of these, with "
            f"{characters / most_characters:.1f} times the most data, has a loss of {measured:.3f}; the fit of N and D "
            f"had foretold {_told(whole)}, which is {_off(whole[0], measured, entropy)}; its interval {holds} what was "
            f"measured. The power law of compute alone says {_told(alone)}, {_off(alone[0], measured, entropy)}."
        )
    return findings


def _off(foretold: float, measured: float, entropy: float) -> str:
    share = 100 * (foretold / measured - 1)
    impossible = " and less than any model can have" if foretold < entropy else ""
    return f"{abs(share):.1f} % too {'high' if share > 0 else 'low'}{impossible}"


def _compute_finding(runs: Sequence[Trained]) -> str:
    shares = {run.width: run.compute / run.operations for run in runs}
    narrow, wide = min(shares), max(shares)
    return (
        f"The rule of 6 N D gives {100 * shares[narrow]:.0f} % of the operations that are counted at a width of "
        f"{narrow}, and {100 * shares[wide]:.0f} % at {wide}: it leaves out the products of queries with keys and of "
        "weights with values."
    )


def _law_table(laws: Laws, drawn: Sequence[Laws]) -> Table:
    meanings = {
        "E": "E, nats a character", "alpha": "alpha, of parameters", "beta": "beta, of data",
        "share of size": "beta / (alpha + beta), of the best size with compute",
        "size alone": "power law of parameters alone", "data alone": "power law of data alone",
        "compute alone": "power law of compute alone",
    }  # fmt: skip
    rows: list[list[Cell]] = [[meanings[name], number] for name, number in _around(laws, drawn).items()]
    return Table(
        name="what was fitted",
        columns=["number", "value"],
        rows=rows,
        note=f"In brackets the 95 % interval over {len(drawn)} draws of runs with replacement.",
    )


def _larger_table(laws: Laws, drawn: Sequence[Laws], larger: Sequence[Trained]) -> Table:
    rows: list[list[Cell]] = [
        [run.parameters, run.characters, run.loss, *_foretold(laws, drawn, run)] for run in larger
    ]
    columns = ["parameters", "characters", "loss", "foretold by N and D", "foretold by compute alone"]
    return Table(name="a larger model, to which nothing was fitted", columns=columns, rows=rows)


def _run_table(runs: Sequence[Trained], laws: Laws) -> Table:
    rows: list[list[Cell]] = [
        [run.seed, run.width, run.parameters, run.characters, run.operations, run.loss,
         run.loss / laws.whole.loss(run.parameters, run.characters) - 1]
        for run in runs
    ]  # fmt: skip
    columns = ["seed", "width", "parameters", "characters", "operations", "loss", "off the fit"]
    return Table(
        name="runs that the laws are fitted to", columns=columns, rows=rows, note="Off the fit: loss / fitted - 1."
    )
