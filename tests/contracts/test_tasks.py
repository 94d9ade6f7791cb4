"""What every registered task must satisfy, ours and those of other packages alike."""

import dataclasses
import json
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.contracts.plugin_path import installed_plugin
from tests.golden import data as rows_of
from tests.tiny import TRANSFORMER, Tiny, tiny

from regard.data.builtin.ratings import generate_ratings
from regard.data.builtin.scenes import generate_scenes
from regard.data.codecs.codec import write_codecs
from regard.data.sources import NamedRows
from regard.errors import ConfigError
from regard.evaluation import find_metric
from regard.evaluation.seeds import check_alike
from regard.runs.folder import RunFolder
from regard.runs.train import flatten
from regard.settings import Settings, to_toml
from regard.tasks import TASKS, find_task
from regard.tasks.capabilities import LinearProber
from regard.tasks.content import ExportSpec, ServerSchema
from regard.tasks.registry import task_for_head
from regard.tasks.task import EvaluationData, Objective
from regard.training.defaults import draft, resolve
from regard.training.precision import choose_hardware
from regard.training.probe import collect_vectors, head_loss
from regard.training.settings import Provenance, ResolvedSettings
from regard.training.update import split_batch

BATCH_TOKENS = 110
PROVENANCE = Provenance(version="0", torch="0", data_hash="", num_parameters=0, created="", hardware="", notes=[])


@dataclass(frozen=True)
class Case:
    """Data and settings that a task is tested on."""

    task: str
    rows: Callable[[Path], Any]
    """Given an empty folder, rows in memory, or the path of a file written there."""
    inputs: tuple[str, ...] = ()
    """Inputs of the predictor; those of held-out rows where there are none."""
    preset: str = "transformer-tiny"
    settings: dict[str, Any] = field(default_factory=dict)
    """Sections, and settings of the task, as `tiny` takes them."""


def in_memory(make: Callable[..., Any], count: int = 60) -> Callable[[Path], Any]:
    return lambda folder: make(count)


def series(folder: Path) -> list[tuple[str, str]]:
    """Rising and falling series of the plug-in's task."""
    rng = np.random.default_rng(1)
    numbers = [sorted(rng.random(4 + row % 6).round(3).tolist(), reverse=row % 2 == 0) for row in range(60)]
    return [(" ".join(map(str, some)), "down" if row % 2 == 0 else "up") for row, some in enumerate(numbers)]


def rows_of_numbers(count: int) -> NamedRows:
    """Two columns of one series, with missing values."""
    heat = np.random.default_rng(2).normal(size=count).round(3).tolist()
    loads = [None if step % 13 == 5 else step % 7 for step in range(count)]
    return NamedRows([{"time": step, "heat": heat[step], "load": loads[step]} for step in range(count)])


def rows_of_events(subjects: int) -> NamedRows:
    """Histories of two kinds of events with a number that is missing now and then, of which some are censored."""
    rng = np.random.default_rng(4)
    rows = []
    for subject in range(subjects):
        times = rng.exponential(2.0, 2 + subject % 5).cumsum().round(3)
        for place, time in enumerate(times):
            level = None if place % 3 == 0 else round(float(rng.normal()), 2)
            rows.append({"subject": f"s{subject}", "time": time, "event": "ab"[(place + subject) % 2], "level": level})
        if subject % 3:
            rows.append({"subject": f"s{subject}", "time": times[-1] + 1.5, "event": "end", "level": None})
    return NamedRows(rows)


def episodes(count: int, *, is_discrete: bool = True) -> NamedRows:
    """Episodes of different lengths; the action depends on the observation."""
    rng = np.random.default_rng(3)
    found = []
    for number in range(count):
        seen = rng.normal(size=(3 + number % 7, 3)).round(3)
        actions = (seen[:, 0] > 0).astype(int) if is_discrete else seen[:, :2] * 3 + rng.normal(size=(len(seen), 2))
        rewards = [1.0, *[-0.5] * (len(seen) - 1)]
        found.append({"observations": seen.tolist(), "actions": actions.tolist(), "rewards": rewards})
    return NamedRows(found)


HISTORIES = (
    '{"observations": [[0.1, 0.2, 0.3]]}',
    '{"observations": [[0.1, 0.2, 0.3], [1, 0, -1]], "actions": [1], "rewards": [1.0], "return": 2}',
)
CONTINUOUS_HISTORIES = (
    HISTORIES[0], '{"observations": [[0.1, 0.2, 0.3], [1, 0, -1]], "actions": [[0.5, 0.1]], "rewards": [1.0]}',
)  # fmt: skip


def scenes(folder: Path) -> list[tuple[str, ...]]:
    """Pictures with two captions each, whose words have boxes."""
    return list(generate_scenes(120, 1))


CAPTIONS = {"image": {"size": 8, "patch_size": 4}, "decoder_dim": 12, "decoder_dropout": 0.0}


def graphs(count: int, target: str) -> NamedRows:
    """Paths of two kinds of nodes, with numbers at their edges."""
    rng, rows = np.random.default_rng(4), []
    for row in range(count):
        size = 2 + row % 6
        nodes = ["ab"[number] for number in rng.integers(2, size=size)]
        edges = [[node, node + 1, [round(float(rng.normal()), 3)]] for node in range(size - 1)]
        targets = {
            "label": "odd" if size % 2 else "even",
            "number": nodes.count("a") + 0.5 * size,
            "labels": ["end" if node in (0, size - 1) else None if node == 3 else "inside" for node in range(size)],
        }
        if target == "properties":
            known = {"number": targets["number"] if row % 4 else None, "size": 0.5 - size}
            rows.append({"nodes": nodes, "edges": edges, **known})
            continue
        rows.append({"nodes": nodes, "edges": edges, "label": targets[target]})
    return NamedRows(rows)


SMALL_GRAPHS = {"model": {"num_layers": 2, "model_dim": 12, "dropout": 0.0}}


def rows_of_molecules(count: int) -> list[tuple[str, str]]:
    """Chains of carbon with a ring or an alcohol, and a number that depends on their length."""
    ends = ("O", "N", "c1ccccc1", "C(=O)O", "Cl")
    return [("C" * (1 + row // 5) + ends[row % 5], f"{row / 7 + row % 5:.2f}") for row in range(count)]


def rows_of_labeled_molecules(count: int) -> list[tuple[str, str | None, str]]:
    """The same with two labels, the first of which is missing in some rows."""
    rows = rows_of_molecules(count)
    return [(text, None if row % 4 == 1 else str(row % 2), str(row % 3 % 2)) for row, (text, _) in enumerate(rows)]


def rows_of_trees(count: int) -> list[str]:
    """Sentences of nouns, with a verb, an adjective or a phrase at their end."""
    nouns, found = ("cat", "dog", "sea", "boy", "Ada"), []
    for row in range(count):
        phrase = f"(NP (DT the) (NN {nouns[row % 5]}))" if row % 3 else f"(NP (NNP {nouns[row % 5]}))"
        place = "" if row % 2 else f" (PP (IN by) (NP (DT a) (NN {nouns[row % 4]}) (NN {nouns[row // 5 % 5]})))"
        found.append(f"(S {phrase} (VP (VBZ sees) (NP (NN {nouns[row // 7 % 5]})){place}) (. .))")
    return [*found, "(FRAG (NP (NN cat)))", "(S (VP (VB go)))"]


def rows_of_chats(count: int) -> NamedRows:
    """Conversations of one or two questions, some of which begin with a system message."""
    rows = []
    for row in range(count):
        word = ("sea", "cat", "dog", "sun", "hut")[row % 5]
        talk = [("user", f"what is {row}?"), ("assistant", f"the {word}.")]
        talk += [("user", "why?"), ("assistant", "it is so.")] if row % 3 == 0 else []
        talk = [("system", "be brief."), *talk] if row % 4 == 0 else talk
        rows.append({"messages": [{"role": role, "content": text} for role, text in talk]})
    return NamedRows(rows)


SHORT_SERIES = {"horizon": 3, "input_length": 8}
WORDS = {"tokenizer": "words"}
MEALS = in_memory(rows_of.meals, 40)
BLANKS = ("the old ____ sees the dog.", "a ____", "the cat ____ the sea and the ____")
PROMPTS = ("the old ", "cat", "the dog sees the cat. the")
CASES = {
    "seq2seq": Case("seq2seq", in_memory(rows_of.reversals), settings=WORDS),
    "seq2seq-two-tokenizers": Case(
        "seq2seq", in_memory(rows_of.reversals), settings={**WORDS, "target_tokenizer": "characters"}
    ),
    "seq2seq-lstm": Case(
        "seq2seq", in_memory(rows_of.reversals), preset="lstm-attention-tiny",
        settings={**WORDS, "model": {"num_layers": 1, "model_dim": 12, "dropout": 0.0}},
    ),
    "language-modeling": Case(
        "language-modeling", rows_of.text_file, PROMPTS, "gpt-tiny", {"tokenizer": "characters", "window": 24}
    ),
    "language-modeling-documents": Case(
        "language-modeling", lambda folder: rows_of.documents(), PROMPTS, "gpt-tiny", {**WORDS, "window": 24}
    ),
    "instruction-tuning": Case(
        "instruction-tuning", lambda folder: rows_of_chats(60), ("what is big?", "[1]"), "gpt-tiny", {"max_length": 50},
    ),
    "instruction-tuning-likelihoods": Case(
        "instruction-tuning", lambda folder: rows_of_chats(60), ("what is big?",), "lstm-tiny",
        {**WORDS, "max_length": 40, "too_long": "cut", "answers": "last", "compare_answers": False,
         "model": {"num_layers": 1, "model_dim": 12, "dropout": 0.0}},
    ),
    "masked-language-modeling": Case(
        "masked-language-modeling", lambda folder: rows_of.documents(), BLANKS, settings={**WORDS, "window": 24}
    ),
    "text-classification": Case(
        "text-classification", in_memory(rows_of.opinions), settings={**WORDS, "balance": True}
    ),
    "text-classification-pairs": Case("text-classification", in_memory(rows_of.comparisons), settings=WORDS),
    "text-classification-multi-label": Case(
        "text-classification", in_memory(rows_of.topics), settings={**WORDS, "label_separator": ","}
    ),
    "regression": Case("regression", in_memory(rows_of.ratings), settings=WORDS),
    "token-classification": Case("token-classification", rows_of.entities, settings=WORDS),
    "token-classification-crf": Case(
        "token-classification", rows_of.entities, settings={"tokenizer": "characters", "crf": True}
    ),
    "question-answering": Case("question-answering", rows_of.questions, settings={**WORDS, "max_length": 14}),
    "sentence-embedding": Case("sentence-embedding", in_memory(rows_of.paraphrases), settings=WORDS),
    "aspect-sentiment": Case("aspect-sentiment", MEALS, settings={**WORDS, "query": "both"}),
    "aspect-sentiment-text": Case("aspect-sentiment", MEALS, settings={**WORDS, "query": "text", "balance": True}),
    "image-classification": Case(
        "image-classification", lambda folder: rows_of.lines(folder, 20), preset="vit-tiny",
        settings={"image": {"size": 8, "patch_size": 4, "channels": 1}, "balance": True},
    ),
    "image-generation": Case(
        "image-generation", lambda folder: rows_of.lines(folder, 20), preset="pixel-gpt-tiny",
        settings={"model": {**TRANSFORMER, "components": 3, "neighborhood": 2}, "levels": 64, "flips": True, "size": 6},
    ),
    "image-generation-lstm": Case(
        "image-generation", lambda folder: rows_of.lines(folder, 20), preset="pixel-lstm-tiny",
        settings={"model": {"num_layers": 1, "model_dim": 12}, "by_class": False, "size": 5, "channels": 3},
    ),
    "forecasting": Case(
        "forecasting", lambda folder: rows_of_numbers(90), preset="patchtst-tiny", settings=SHORT_SERIES
    ),
    "forecasting-variables": Case(
        "forecasting", lambda folder: rows_of_numbers(90), preset="itransformer-tiny", settings=SHORT_SERIES
    ),
    "forecasting-lstm": Case(
        "forecasting", lambda folder: rows_of_numbers(90), preset="lstm-series-tiny", settings=SHORT_SERIES
    ),
    "forecasting-linear": Case(
        "forecasting", lambda folder: rows_of_numbers(90), preset="linear-tiny", settings=SHORT_SERIES
    ),
    "forecasting-seq2seq": Case(
        "forecasting", lambda folder: rows_of_numbers(90), preset="series-seq2seq-tiny", settings=SHORT_SERIES
    ),
    "forecasting-covariates": Case(
        "forecasting", lambda folder: rows_of_numbers(90), preset="series-seq2seq-tiny",
        settings={**SHORT_SERIES, "known": ["heat"]},
    ),
    "event-prediction": Case(
        "event-prediction", lambda folder: rows_of_events(60), preset="transformer-events-tiny",
        settings={"components": 3, "model": {"num_layers": 1, "model_dim": 12, "num_heads": 2, "feedforward_dim": 17}},
    ),
    "event-prediction-lstm": Case(
        "event-prediction", lambda folder: rows_of_events(60), preset="lstm-events-tiny",
        settings={"components": 3, "model": {"model_dim": 12}},
    ),
    "molecule-properties": Case(
        "molecule-properties", in_memory(rows_of_molecules), settings={"spellings": 3, "averaged": 2}
    ),
    "molecule-properties-labels": Case(
        "molecule-properties", in_memory(rows_of_labeled_molecules), preset="lstm-tiny",
        settings={"spellings": 0, "averaged": 0, "model": {"num_layers": 1, "model_dim": 12, "dropout": 0.0}},
    ),
    "image-classification-cnn": Case(
        "image-classification", lambda folder: rows_of.lines(folder, 20), preset="cnn-tiny",
        settings={
            "image": {"size": 8, "patch_size": 4, "channels": 1}, "flips": True,
            "model": {"num_layers": 1, "model_dim": 12},
        },
    ),
    "image-classification-efficientnet": Case(
        "image-classification", lambda folder: rows_of.lines(folder, 20), preset="efficientnet-lite0",
        settings={
            "image": {"size": 64, "patch_size": 32, "channels": 1},
            "model": {"model_dim": 12, "stem_dim": 4, "widths": [4] * 7, "depths": [1] * 7},
        },
    ),
    "control": Case(
        "control", lambda folder: episodes(30), HISTORIES, "decision-transformer-tiny", {"window": 4}
    ),
    "control-continuous": Case(
        "control", lambda folder: episodes(30, is_discrete=False), CONTINUOUS_HISTORIES, "decision-transformer-tiny",
        {"window": 4, "use_returns": False},
    ),
    "control-lstm": Case("control", lambda folder: episodes(30), HISTORIES, "lstm-control-tiny", {"window": 4}),
    "captioning": Case(
        "captioning", scenes, preset="cnn-tiny", settings={**CAPTIONS, "model": {"num_layers": 1, "model_dim": 12}}
    ),
    "captioning-transformer": Case(
        "captioning", scenes, preset="vit-tiny",
        settings={
            **CAPTIONS, "decoder": "transformer-tiny", "decoder_dim": 16, "tokenizer": "characters", "flips": True,
        },
    ),
    "captioning-one-vector": Case(
        "captioning", scenes, preset="cnn-tiny",
        settings={
            **CAPTIONS, "decoder": "lstm-tiny", "memory": "mean", "model": {"num_layers": 1, "model_dim": 12},
            "crop_padding": 1,
        },
    ),
    "graph-classification": Case(
        "graph-classification", lambda folder: graphs(60, "label"), preset="graph-transformer-tiny",
        settings={"model": {"num_layers": 2, "model_dim": 12, "num_heads": 3, "dropout": 0.0}, "balance": True},
    ),
    "graph-classification-messages": Case(
        "graph-classification", lambda folder: graphs(60, "label"), preset="message-passing-tiny", settings=SMALL_GRAPHS
    ),
    "graph-regression": Case(
        "graph-regression", lambda folder: graphs(60, "number"), preset="message-passing-tiny", settings=SMALL_GRAPHS
    ),
    "graph-properties": Case(
        "graph-properties", lambda folder: graphs(60, "properties"), preset="message-passing-tiny",
        settings=SMALL_GRAPHS,
    ),
    "node-classification": Case(
        "node-classification", lambda folder: graphs(60, "labels"), preset="graph-transformer-tiny",
        settings={"model": {"num_layers": 2, "model_dim": 12, "num_heads": 3, "dropout": 0.0}},
    ),
    "parsing": Case("parsing", in_memory(rows_of_trees), settings={**WORDS, "span_dim": 11}),
    "parsing-lstm": Case(
        "parsing", in_memory(rows_of_trees), preset="lstm-tiny",
        settings={"tokenizer": "characters", "model": {"num_layers": 1, "model_dim": 12, "dropout": 0.0}},
    ),
    "parsing-linear": Case("parsing", in_memory(rows_of_trees), settings={**WORDS, "decoder": "transformer-tiny"}),
    "reward-modeling": Case(
        "reward-modeling", lambda folder: list(generate_ratings(90, 2)), ("write about cats and rain:\t purr",),
        settings=WORDS,
    ),
    "preference-optimization": Case(
        "preference-optimization", lambda folder: list(generate_ratings(90, 2)), ("write about cats and rain:",),
        "gpt-tiny", {**WORDS, "method": "simpo"},
    ),
    "trend": Case("trend", series, preset="pooled-tiny"),
}  # fmt: skip


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    """A case, with the plug-in installed where it is the plug-in's."""
    found = CASES[request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(tmp_path_factory.mktemp("cache")))
        if found.task == "molecule-properties":
            pytest.importorskip("rdkit")
        if found.task != "trend":
            yield found
            return
        with installed_plugin(tmp_path_factory.mktemp("plugin")):
            yield found


@pytest.fixture(scope="module")
def made(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = tmp_path_factory.mktemp("rows")
    sections = {"data": {"splits": [0.7, 0.2, 0.1]}, **case.settings}
    return tiny(case.task, case.rows(folder), preset=case.preset, **sections)


@pytest.fixture
def model(made: Tiny) -> Any:
    """Every weight is random: some are zero initially, and zeros hide mistakes."""
    return made.build(std=0.3)


def evaluation_data(case: Case, made: Tiny, model: Any) -> EvaluationData:
    rows = made.data.held_out["valid"]
    inputs = [made.task.input_of(row) for row in rows] if made.task.has_targets else []
    return EvaluationData(rows, made.predict(model, inputs) if inputs else [], made.likelihoods(model, rows))


def inputs_of(case: Case, made: Tiny) -> list[str]:
    return list(case.inputs) or [made.task.input_of(row) for row in made.data.held_out["valid"][:5]]


def required_values(settings: Settings, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting that has no default, by its name in run.toml."""
    for name, info in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, Settings):
            yield from required_values(value, f"{prefix}{name}.")
        elif info.is_required():
            yield f"{prefix}{name}", value


def test_every_registered_task_has_a_case():
    assert {case.task for case in CASES.values()} >= set(TASKS.names())


def test_a_task_declares_what_it_is(case: Case, made: Tiny):
    task = find_task(case.task)
    assert task.name == case.task == task.Settings.model_fields["name"].default
    assert task.description
    assert task.__doc__
    assert set(made.task.codecs) <= set(task.codec_types)
    for metric in (*task.metrics, *made.task.metric_names(), *made.task.comparison_metrics(made.task.metrics[0])):
        assert find_metric(metric).name == metric
    assert task.head_kind is None or not task.receives_imports or task_for_head(task.head_kind) is task
    assert set(task.objectives) <= {each.name for each in dataclasses.fields(Objective)}


def test_settings_and_codecs_are_restored_from_a_run_folder(made: Tiny, tmp_path: Path):
    folder = RunFolder(tmp_path)
    folder.write_settings(made.settings, PROVENANCE)
    write_codecs(folder.codecs_path, made.task.codecs)
    assert folder.read_settings() == made.settings
    assert ResolvedSettings.read(tomllib.loads(to_toml(made.settings.model_dump()))) == made.settings
    codecs = folder.read_codecs(made.settings)
    assert {name: codec.to_json() for name, codec in codecs.items()} == {
        name: codec.to_json() for name, codec in made.task.codecs.items()
    }
    rows = made.data.held_out["valid"]
    stored, restored = (list(task.row_batches(rows)) for task in (made.task, made.task.with_codecs(codecs)))
    for one, other in zip(stored, restored, strict=True):
        torch.testing.assert_close(one.tensors(), other.tensors(), rtol=0, atol=0)


def test_resolved_settings_have_a_value_where_there_is_no_default(case: Case, made: Tiny):
    found = dict(required_values(made.settings))
    assert found
    assert [name for name, value in found.items() if value is None] == []
    unresolved = flatten(draft({"task": {"name": case.task}, "preset": case.preset}).model_dump())
    assert unresolved["train.learning_rate"] is None
    assert unresolved.keys() >= found.keys()


def test_an_unknown_setting_names_the_nearest(case: Case):
    known = list(find_task(case.task).Settings.model_fields)[-1]
    with pytest.raises(ConfigError, match=rf"task\.{known[:-1]}\b.*task\.{known}\b"):
        draft({"task": {"name": case.task, known[:-1]: 1}, "preset": case.preset})


def test_the_seed_and_the_number_determine_a_batch(made: Tiny):
    one, same, other = (made.batches(batch_tokens=BATCH_TOKENS, seed=seed) for seed in (5, 5, 6))
    assert one.per_epoch > 1
    numbers = (0, one.per_epoch - 1, 3 * one.per_epoch)
    for number in numbers:
        torch.testing.assert_close(one.batch(number).tensors(), same.batch(number).tensors(), rtol=0, atol=0)

    def content(batches: Any) -> list[Any]:
        return [[None if x is None else x.tolist() for x in batches.batch(number).tensors()] for number in numbers]

    assert content(one) != content(other)


def test_padding_to_fixed_shapes_does_not_change_the_loss(made: Tiny, model: Any):
    plain = made.batches(batch_tokens=BATCH_TOKENS)
    padded = made.batches(batch_tokens=BATCH_TOKENS, has_fixed_shapes=True)
    objectives = [Objective(), *(Objective(**{name: 0.3}) for name in made.task.objective_terms())]
    for number in range(min(3, plain.per_epoch)):
        one, other = plain.batch(number), padded.batch(number)
        assert (one.num_targets, one.num_tokens) == (other.num_targets, other.num_tokens)
        for objective in objectives:
            torch.testing.assert_close(
                made.task.loss(model, one, objective), made.task.loss(model, other, objective), rtol=1e-5, atol=1e-5
            )


def test_the_loss_is_a_sum_over_rows(case: Case, made: Tiny, model: Any):
    batch = made.batches(batch_tokens=BATCH_TOKENS).batch(0)
    halves = split_batch(batch, 2)
    assert len(halves) == 2
    whole = made.task.loss(model, batch)
    total = sum(made.task.loss(model, half) for half in halves)
    is_sum = torch.allclose(whole, torch.as_tensor(total).to(whole), rtol=1e-5)
    assert is_sum == (not made.task.uses_whole_batch)
    assert batch.num_targets > 0


def test_a_linear_head_reads_the_vectors_that_a_task_declares(made: Tiny, model: Any):
    if not (isinstance(made.task, LinearProber) and made.task.has_linear_head(made.settings.head)):
        pytest.skip("the head is not one linear layer on vectors of the base")
    batches = made.task.validation_batches(made.data)
    vectors = collect_vectors(model, made.task, batches, choose_hardware("cpu", "float32", 12))
    assert vectors is not None
    output = model.head.output
    assert head_loss(vectors, output.weight, output.bias) == pytest.approx(made.validation(model).mean, rel=1e-5)


def test_every_parameter_has_a_gradient(made: Tiny, model: Any):
    for number in range(2):
        made.task.loss(model, made.batches(batch_tokens=BATCH_TOKENS).batch(number)).backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []


def test_terms_of_the_objective_change_the_loss(made: Tiny):
    """With dropout, since R-Drop compares two passes."""
    model = made.build(made.settings.model.changed(**DROPOUT.get(made.settings.model.family, {})), std=0.3, dropout=0.5)
    batch = made.batches(batch_tokens=BATCH_TOKENS).batch(0)
    for name in made.task.objective_terms():
        losses = []
        for value in (1e-3, 0.5):
            torch.manual_seed(3)
            losses.append(float(made.task.loss(model.train(), batch, Objective(**{name: value})).detach()))
        assert losses[0] != losses[1], name


DROPOUT = {"transformer": {"dropout": 0.3}, "recurrent": {"dropout": 0.3}, "vision": {"dropout": 0.3},
           "graph-attention": {"dropout": 0.3}, "message-passing": {"dropout": 0.3}}  # fmt: skip


def test_a_term_without_effect_is_an_error(case: Case, made: Tiny):
    for name in {"label_smoothing", "rdrop"} - made.task.objective_terms():
        values = {**made.settings.model_dump(), "train": {"max_steps": 2, "device": "cpu", name: 0.3}}
        with pytest.raises(ConfigError, match=rf"train\.{name}"):
            resolve(draft({key: value for key, value in values.items() if value is not None}), made.data)


def test_stored_rows_and_rows_of_text_have_the_same_likelihoods(made: Tiny, model: Any):
    rows = made.data.held_out["valid"]
    stored, given = made.validation(model), made.likelihoods(model, rows)
    assert sorted(given.losses) == pytest.approx(sorted(stored.losses), rel=1e-5, abs=1e-6)
    assert sorted(given.counts) == sorted(stored.counts)
    assert sorted(given.ranks) == sorted(stored.ranks)
    assert stored.mean == pytest.approx(sum(stored.losses) / sum(stored.counts))
    assert np.isfinite(stored.losses).all()


def test_predictions_are_in_order_and_do_not_depend_on_other_inputs(case: Case, made: Tiny, model: Any):
    inputs = inputs_of(case, made)
    together = made.predict(model, inputs)
    assert len(together) == len(inputs)
    for text, found in zip(inputs, together, strict=True):
        assert text.startswith(found.input)
        (alone,) = made.predict(model, [text])
        assert alone.input == found.input
        if made.task.server_schema([]).output == "vector":
            vectors = [[float(number) for number in each.output.split()] for each in (alone, found)]
            assert vectors[0] == pytest.approx(vectors[1], abs=1e-5)
        else:
            assert alone.output == found.output
        if found.probabilities is not None:
            assert alone.probabilities == pytest.approx(found.probabilities)
            assert all(0.0 <= probability <= 1.0 for probability in found.probabilities.values())
        assert json.loads(json.dumps(found.to_json()))["output"] == found.output


def test_scores_are_those_of_the_declared_metrics(case: Case, made: Tiny, model: Any):
    data = evaluation_data(case, made, model)
    scores = {score.name: score for score in made.task.scores(data)}
    assert set(made.task.metric_names()) <= set(scores)
    assert made.task.headline(data.rows) in scores
    assert made.task.comparison_metrics(made.task.headline(data.rows))[0] in scores
    json.dumps({name: score.to_json() for name, score in scores.items()})
    examples = made.task.examples(data)
    stored = json.loads(json.dumps(examples.to_json()))
    assert json.loads(json.dumps(type(examples).from_json(stored).to_json())) == stored
    assert len(made.task.align([examples, examples])) == 2


def test_a_baseline_is_scored_by_the_same_metrics_on_the_same_examples(case: Case, made: Tiny, model: Any):
    """A task without one is compared with its base, or says why there is none."""
    baseline = made.task.baseline(made.data)
    if baseline is None:
        assert made.task.needs_base or made.task.why_no_baseline
        return
    assert not made.task.needs_base
    assert not made.task.why_no_baseline
    data = evaluation_data(case, made, model)
    headline = find_metric(made.task.headline(data.rows))
    found = made.task.baseline_examples(baseline, data.rows)
    counts = [headline.count(each) for each in made.task.align([made.task.examples(data), found])]
    assert check_alike(counts) is counts[0]
    assert counts[1].value == headline.scores(found)[0].value


def test_a_report_is_plain_data(case: Case, made: Tiny, model: Any):
    content = made.task.report(model, evaluation_data(case, made, model))
    assert json.loads(json.dumps(dataclasses.asdict(content))).keys() == dataclasses.asdict(content).keys()
    assert content.samples or content.sections or not made.task.has_targets  # numbers are plotted
    for sample in content.samples:
        assert {"source", "target", "prediction"} <= sample.keys()
    assert made.task.notes()


def test_a_server_schema_describes_the_inputs(case: Case, made: Tiny):
    schema = made.task.server_schema(made.data.held_out["valid"])
    assert isinstance(schema, ServerSchema)
    for text in inputs_of(case, made):
        assert text.count("\t") + 1 == len(schema.inputs)
    if schema.labels:
        assert len(set(schema.labels)) == len(schema.labels)
    assert not (schema.streams and made.task.has_targets) or made.task.answers_prompts


def test_an_export_is_described_or_refused(made: Tiny):
    if made.task.head_kind is None or "target" in made.task.codecs:
        with pytest.raises(ConfigError, match="export"):
            made.task.export_spec()
        return
    spec = made.task.export_spec()
    assert isinstance(spec, ExportSpec)
    assert spec.head == made.task.head_kind
    if spec.labels:
        assert (
            len(spec.labels) == next(p for n, p in made.build().named_parameters() if n == "head.output.bias").numel()
        )
    json.dumps(dataclasses.asdict(spec))
