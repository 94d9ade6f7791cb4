"""The golden runs: one table of tiny runs, and what is recorded of each.

This is the only file of the folder that contains names of the package: of tasks, settings, presets, metrics and
attributes. The files in `runs/` have names and keys of their own, so that a rename in the package changes this file
and no recorded number.

A run takes twelve steps in float32 on one CPU thread. What a case does not set is left to the defaults of its task,
so that the runs fix those too.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.golden import data

import regard
from regard import Run

Values = dict[str, Any]

TASKS = {
    "pairs": "seq2seq",
    "text": "language-modeling",
    "masked": "masked-language-modeling",
    "labels": "text-classification",
    "numbers": "regression",
    "tags": "token-classification",
    "answers": "question-answering",
    "vectors": "sentence-embedding",
    "aspects": "aspect-sentiment",
    "images": "image-classification",
}
"""The name in the package of each task in the table below."""

METRICS: dict[str, str] = {}
"""The recorded name of each metric that the package calls otherwise now."""

_TRANSFORMER = {
    "model.num_layers": 2,
    "model.model_dim": 16,
    "model.num_heads": 2,
    "model.feedforward_dim": 32,
}
_RECURRENT = {"model.num_layers": 2, "model.model_dim": 16}
_CONVOLUTION = {"model.num_layers": 2, "model.model_dim": 16, "model.kernel_size": 3}
_VISION = {**_TRANSFORMER, "task.image.size": 8, "task.image.patch_size": 4, "task.image.channels": 1}
_BAG = {"model.model_dim": 16}
_LEARNED = {"train.max_steps": 24, "train.evaluate_every": 8, "train.batch_tokens": 480, "train.learning_rate": 0.03}
"""Steps enough to write more than nothing."""
_SHORT: Values = {"max_tokens": 12}
"""The most tokens that a probe of generation writes."""
_COMMON = {
    "data.splits": [0.7, 0.2, 0.1],
    "train.max_steps": 12,
    "train.evaluate_every": 4,
    "train.batch_tokens": 160,
    "train.seed": 5,
    "train.device": "cpu",
    "train.precision": "float32",
}


def _settings(task: str, values: Mapping[str, Any]) -> Values:
    """Settings as `regard.train` takes them, nested, from dotted names."""
    nested: Values = {"task": {"name": TASKS[task]}}
    for name, value in {**_COMMON, **values}.items():
        *sections, last = name.split(".")
        inner = nested
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return nested


def _losses(run: Run, name: str) -> dict[str, float]:
    """The loss under this name at each step that it was written down at."""
    lines = map(json.loads, (run.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return {str(line["step"]): line[name] for line in lines if name in line}


def _scores(run: Run) -> Values:
    """Each score on the validation rows, with its interval."""
    scores = run.evaluate().scores.values()
    return {
        METRICS.get(score.name, score.name): {
            "value": score.value,
            "interval": None if score.interval is None else list(score.interval),
        }
        for score in scores
    }


Probe = Callable[[Run, Path], Values]
"""What is recorded of a run besides its losses and its scores."""


def predicted(*inputs: str, name: str = "predictions", **options: Any) -> Probe:
    """The predictions for these inputs as text."""

    def probe(run: Run, folder: Path) -> Values:
        return {name: dict(zip(inputs, run.predict(list(inputs), **options), strict=True))}

    return probe


def probable(*inputs: str) -> Probe:
    """The predicted labels, and the probability of each label."""

    def probe(run: Run, folder: Path) -> Values:
        full = run.predict_full(list(inputs))
        return {
            "predictions": {text: each.output for text, each in zip(inputs, full, strict=True)},
            "probabilities": {text: each.probabilities for text, each in zip(inputs, full, strict=True)},
        }

    return probe


def estimated(*inputs: str) -> Probe:
    """The predicted numbers."""
    return lambda run, folder: {"numbers": {text: float(run.predict(text)) for text in inputs}}


def ranked(*inputs: str, **options: Any) -> Probe:
    """What beam search finds, with the score that it was ranked by."""

    def probe(run: Run, folder: Path) -> Values:
        full = run.predict_full(list(inputs), **options)
        return {
            "beam": {text: {"text": each.output, "score": each.score} for text, each in zip(inputs, full, strict=True)}
        }

    return probe


def written(prompt: str, **options: Any) -> Probe:
    """Texts that continue a prompt: greedily, and sampled from two seeds."""

    def probe(run: Run, folder: Path) -> Values:
        sampled = [run.generate(prompt, temperature=0.8, top_k=9, seed=seed, **_SHORT) for seed in (1, 2)]
        return {"generations": {"prompt": prompt, "greedy": run.generate(prompt, **_SHORT), "sampled": sampled}}

    return probe


def scored(*texts: str) -> Probe:
    """The log-probability of each token of a text."""
    return lambda run, folder: {
        "log_probabilities": {each.text: list(each.log_probabilities) for each in run.score(list(texts))}
    }


def embedded(*inputs: str) -> Probe:
    """The first numbers of each vector."""
    return lambda run, folder: {"vectors": {text: run.embed(text)[:4].tolist() for text in inputs}}


def seen(*images: str) -> Probe:
    """The predicted label of each image, and the probability of each label."""

    def probe(run: Run, folder: Path) -> Values:
        full = run.predict_full([str(folder / "images" / name) for name in images])
        return {
            "predictions": {name: each.output for name, each in zip(images, full, strict=True)},
            "probabilities": {name: each.probabilities for name, each in zip(images, full, strict=True)},
        }

    return probe


@dataclass(frozen=True)
class Case:
    """A run, and what is recorded of it under `runs/NAME.json`."""

    name: str
    task: str
    data: Callable[[Path], Any]
    """Given an empty folder, the rows, or the path of a file written there."""
    model: str
    """A preset."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Settings by dotted name."""
    probes: Sequence[Probe] = ()
    base: "Case | None" = None
    """The run that is fine-tuned, where it is not trained from scratch."""
    method: Literal["all", "head", "top", "lora"] = "all"
    """How its base is fine-tuned."""

    def observe(self, folder: Path) -> Values:
        """Makes the run in an empty folder; returns its losses, its scores and what its probes give."""
        run = self._run(folder)
        found: Values = {
            "training_losses": _losses(run, "loss"),
            "validation_losses": _losses(run, "valid_loss"),
            "scores": _scores(run),
        }
        for probe in self.probes:
            found |= probe(run, folder)
        return found

    def _run(self, folder: Path) -> Run:
        folder.mkdir(parents=True, exist_ok=True)
        settings, rows = _settings(self.task, self.values), self.data(folder)
        if self.base is None:
            return regard.train(rows, model=self.model, out=folder / "run", settings=settings, show_progress=False)
        base = self.base._run(folder / "base").path
        return regard.finetune(
            base,
            rows,
            out=folder / "run",
            method=self.method,
            settings=settings,
            show_progress=False,
        )


def _rows(make: Callable[[], Any]) -> Callable[[Path], Any]:
    return lambda folder: make()


_PAIRS, _OPINIONS, _DOCUMENTS = _rows(data.reversals), _rows(data.opinions), _rows(data.documents)
_WORDS, _CHARACTERS = {"task.tokenizer": "words"}, {"task.tokenizer": "characters"}
_REVERSED = predicted("red cat", "old dog", "Ada sun sea 42", **_SHORT)
_BEAM = ranked("red cat", "Ada sun sea 42", beam_size=3, length_penalty=0.6, **_SHORT)
_SAMPLED = predicted("red cat", "sun sea", name="samples", temperature=1.0, top_p=0.9, seed=3, **_SHORT)
_JUDGED = probable("a good film about a cat", "a slow film about a sea number 3")
_WRITTEN = (written("the old "), scored("the old cat sees the dog.", "cat cat"))
_TAGGED = predicted("Ada Byron left Rome on day 3 .", "on day 42 Alan saw Bern")
_MEALS = ("great soup but rude waiter on day 3", "slow waiter but fine bill")
_DRAWN = seen("bars/0.png", "stripes/1.png")

_BASE_LABELS = Case("", "labels", _OPINIONS, "transformer", {**_TRANSFORMER, **_CHARACTERS})
_BASE_TEXT = Case("", "text", data.text_file, "gpt", {**_TRANSFORMER, **_CHARACTERS, "task.window": 32})


def _cases() -> Iterable[Case]:
    # Each task, with a Transformer.
    pairs = (_REVERSED, _BEAM, _SAMPLED)
    yield Case("pairs-transformer", "pairs", _PAIRS, "transformer", {**_TRANSFORMER, **_WORDS, **_LEARNED}, pairs)
    yield Case("text-transformer", "text", data.text_file, "transformer", {**_TRANSFORMER, **_CHARACTERS}, _WRITTEN)
    masked = (probable("the old ____ sees the dog."), embedded("the old cat"))
    yield Case("masked-transformer", "masked", _DOCUMENTS, "transformer", {**_TRANSFORMER, **_WORDS}, masked)
    yield Case("labels-transformer", "labels", _OPINIONS, "transformer", {**_TRANSFORMER, **_WORDS}, (_JUDGED,))
    several = {**_TRANSFORMER, **_WORDS, "task.label_separator": ","}
    topics = (probable("cat and sea on page 3", "nothing on page 1"),)
    yield Case("several-labels-transformer", "labels", _rows(data.topics), "transformer", several, topics)
    two = (probable("number 3 is red\tit is red", "number 3 is red\tit is blue"),)
    compared = _rows(data.comparisons)
    yield Case("labels-of-two-texts-transformer", "labels", compared, "transformer", {**_TRANSFORMER, **_WORDS}, two)
    rated = (estimated("good and great at 3", "bad at 9"),)
    yield Case("numbers-transformer", "numbers", _rows(data.ratings), "transformer", {**_TRANSFORMER, **_WORDS}, rated)
    yield Case("tags-transformer", "tags", data.entities, "transformer", {**_TRANSFORMER}, (_TAGGED,))
    crf = {**_TRANSFORMER, **_WORDS, "task.crf": True}
    yield Case("tags-crf-transformer", "tags", data.entities, "transformer", crf, (_TAGGED,))
    asked = (predicted("What color is the cat?\tThe cat is red. The dog is green. It was day 3."),)
    # At the default rate the last digits of float32 grow to more than the tolerance.
    slow = {**_TRANSFORMER, **_WORDS, "train.learning_rate": 0.002}
    yield Case("answers-transformer", "answers", data.questions, "transformer", slow, asked)
    alike = (embedded("the cat of the sea 3", "sea has cat, number 3"),)
    same = _rows(data.paraphrases)
    yield Case("vectors-transformer", "vectors", same, "transformer", {**_TRANSFORMER, **_CHARACTERS}, alike)
    meals = _rows(data.meals)
    queries = {"query": "learned", "pair": "text", "both": "both"}
    for asking in queries:
        values = {**_TRANSFORMER, **_WORDS, "task.query": queries[asking]}
        yield Case(f"aspects-{asking}-transformer", "aspects", meals, "transformer", values, (predicted(*_MEALS),))
    yield Case("images-vit", "images", data.lines, "vit", {**_VISION}, (_DRAWN,))

    # Each kind of preset, on the task that it is for.
    yield Case("pairs-simplified", "pairs", _PAIRS, "simplified", {**_TRANSFORMER, **_WORDS, **_LEARNED}, pairs)
    for kind in ("rnn", "gru", "lstm", "gru-attention", "lstm-attention"):
        yield Case(f"pairs-{kind}", "pairs", _PAIRS, kind, {**_RECURRENT, **_WORDS, **_LEARNED}, pairs)
    yield Case("pairs-convolution", "pairs", _PAIRS, "convolution", {**_CONVOLUTION, **_WORDS, **_LEARNED}, pairs)
    for kind in ("gpt", "gpt2", "llama"):
        yield Case(f"text-{kind}", "text", data.text_file, kind, {**_TRANSFORMER, **_CHARACTERS}, _WRITTEN)
    yield Case("labels-bag", "labels", _OPINIONS, "bag", {**_BAG, **_WORDS}, (_JUDGED,))
    yield Case("vectors-bag", "vectors", same, "bag", {**_BAG, **_WORDS}, alike)

    # Families on tasks that they are not first meant for.
    yield Case("labels-gpt", "labels", _OPINIONS, "gpt", {**_TRANSFORMER, **_WORDS}, (_JUDGED,))
    yield Case("labels-lstm", "labels", _OPINIONS, "lstm", {**_RECURRENT, **_WORDS}, (_JUDGED,))
    yield Case("tags-convolution", "tags", data.entities, "convolution", {**_CONVOLUTION, **_WORDS}, (_TAGGED,))
    yield Case("text-convolution", "text", data.text_file, "convolution", {**_CONVOLUTION, **_CHARACTERS}, _WRITTEN)
    carried = {**_RECURRENT, **_CHARACTERS, "task.carry_state": True, "task.window_jitter": 0.2, "task.window": 16}
    yield Case("text-lstm-carried", "text", data.text_file, "lstm", carried, _WRITTEN)
    yield Case("text-documents-gpt", "text", _DOCUMENTS, "gpt", {**_TRANSFORMER, "task.window": 24}, _WRITTEN)

    # Settings of training that change the loss, the batches or the update.
    paper = {**_TRANSFORMER, **_CHARACTERS, "model.block": "post-norm", "model.positions": "sinusoidal"}
    paper |= {"train.schedule": "inverse-sqrt", "train.accumulate": 2, "train.rdrop": 0.5}
    yield Case("pairs-post-norm-rdrop", "pairs", _PAIRS, "transformer", paper, (_REVERSED,))
    muon = {**_TRANSFORMER, "train.optimizer": "muon", "train.ema_decay": 0.0, "train.label_smoothing": 0.0}
    muon |= {"train.max_steps": 16, "train.batch_tokens": 480, "task.tokenizer": "bpe"}
    yield Case("pairs-muon-bpe", "pairs", _PAIRS, "transformer", muon, (_REVERSED,))
    contrast = {**_TRANSFORMER, **_WORDS, "task.contrastive": 0.5, "task.balance": True, "head.pooling": "attention"}
    yield Case("labels-contrastive-balanced", "labels", _OPINIONS, "transformer", contrast, (_JUDGED,))
    spans = {**_TRANSFORMER, **_CHARACTERS, "task.mask_spans": True, "task.mask_share": 0.3}
    yield Case("masked-spans", "masked", _DOCUMENTS, "transformer", spans, (embedded("the old cat"),))

    # Fine-tuning.
    tuned = {"train.learning_rate": 0.01}
    ratings = _rows(data.ratings)
    yield Case("finetune-all", "numbers", ratings, "", tuned, rated, _BASE_LABELS)
    # Without a linear probe: on separable rows it ends where rounding lets it, which differs between CPUs.
    directly = {"train.learning_rate": 0.001, "finetune.probe": False}
    yield Case("finetune-top", "tags", data.entities, "", directly, (_TAGGED,), _BASE_LABELS, "top")
    yield Case("finetune-head", "labels", _rows(data.comparisons), "", tuned, two, _BASE_LABELS, "head")
    lora = {**tuned, "finetune.lora.rank": 3}
    yield Case("finetune-lora", "labels", _rows(data.comparisons), "", lora, two, _BASE_LABELS, "lora")
    dora = {**lora, "finetune.lora.dora": True, "finetune.probe": False}
    yield Case("finetune-lora-of-gpt", "labels", _OPINIONS, "", dora, (_JUDGED,), _BASE_TEXT, "lora")


CASES = {case.name: case for case in _cases()}
