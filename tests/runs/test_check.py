"""`regard check`: every equality holds on runs of different tasks, and a seeded bug in each is found."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.command_line import call
from tests.contracts.plugin_path import installed_plugin

import regard
from regard.adapters.lora import LoRALinear
from regard.interop import EXPORTERS
from regard.interop.model import ExportableModel
from regard.models.transformer import Transformer
from regard.runs import check as module
from regard.runs.check import CheckResult, Equality, check
from regard.training import loop
from regard.training.update import Updater

SHAPE = {"num_layers": 1, "model_dim": 12, "num_heads": 2, "feedforward_dim": 17}
GENERATORS = [
    f"{how}{backend}"
    for backend in ("", ", packed weights")
    for how in (
        "cached decoding: state that grows", "cached decoding: state of fixed size",
        "cached decoding: state of a beam, reordered", "batched decoding",
    )
]  # fmt: skip
TRAINED = ["resumed training", "split batch", "accumulated batches"]


def write(path: Path, lines: list[str]) -> str:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def words(rng: random.Random) -> str:
    return " ".join(rng.choice(("good", "bad", "soup", "waiter", "a", "the")) for _ in range(rng.randint(1, 9)))


def pairs(folder: Path) -> str:
    rng = random.Random(0)
    texts = sorted({words(rng) for _ in range(90)})
    return write(folder / "pairs.tsv", [f"{text}\t{text[::-1]}" for text in texts])


def labels(folder: Path) -> str:
    rng = random.Random(1)
    texts = sorted({words(rng) for _ in range(90)})
    return write(
        folder / "labels.tsv", ["text\tlabel", *(f"{text}\t{'long' if len(text) > 20 else 'short'}" for text in texts)]
    )


def text(folder: Path) -> str:
    rng = random.Random(2)
    return write(folder / "text.txt", [words(rng) for _ in range(120)])


def tags(folder: Path) -> str:
    rng = random.Random(3)
    sentences = [words(rng).split() for _ in range(60)]
    lines = [[*(f"{word} {'B-X' if word == 'soup' else 'O'}" for word in some), ""] for some in sentences]
    return write(folder / "tags.conll", [line for some in lines for line in some])


KINDS: dict[str, tuple[Callable[[Path], str], dict[str, Any]]] = {
    "pairs": (pairs, {"model": "transformer-tiny", "task": "seq2seq"}),
    "recurrent": (pairs, {"model": "lstm-attention-tiny", "task": "seq2seq"}),
    "text": (text, {"model": "llama-tiny"}),
    "labels": (labels, {"model": "transformer-tiny"}),
    "tags": (tags, {"model": "lstm-tiny"}),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """A run of two steps of each kind, trained when it is first used; its precision is that of a user."""
    folder = tmp_path_factory.mktemp("runs")
    made: dict[str, str] = {}

    def make(kind: str) -> str:
        if kind not in made:
            write_data, options = KINDS[kind]
            more = {"task": {"window": 16}} if kind == "text" else {}
            sizes = SHAPE if "lstm" not in options["model"] else {"num_layers": 1, "model_dim": 12}
            regard.train(
                write_data(folder), out=folder / kind, steps=2, baseline=False, show_progress=False,
                settings={"model": sizes, "train": {"batch_tokens": 150}, **more}, **options,
            )  # fmt: skip
            made[kind] = str(folder / kind)
        return made[kind]

    return make


@pytest.fixture(autouse=True)
def _without_exports(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports have tests of their own, and take seconds each."""
    if "exports" not in request.fixturenames:
        monkeypatch.setattr(module, "EXPORTERS", [])


@pytest.fixture
def exports() -> None:
    """Exports are checked, too."""


@pytest.fixture(autouse=True)
def _without_processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """To start other processes takes seconds as well."""
    if "processes" not in request.fixturenames:
        monkeypatch.setattr(module, "_check_processes", lambda run, data: iter(()))


@pytest.fixture
def processes() -> None:
    """Two processes are compared with one, too."""


def verdicts(result: CheckResult) -> dict[str, str]:
    return {each.name: each.verdict for each in result.equalities}


def failing(result: CheckResult) -> dict[str, Equality]:
    return {each.name: each for each in result.equalities if each.verdict == "fails"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("pairs", [*TRAINED, *GENERATORS, "batched inputs", "batched predictions"]),
        ("recurrent", [*TRAINED, *GENERATORS, "batched inputs", "batched predictions"]),
        ("text", [*TRAINED, *GENERATORS]),
        ("labels", [*TRAINED, "batched inputs", "batched predictions"]),
        ("tags", [*TRAINED, "batched inputs", "batched predictions"]),
    ],
)
def test_every_equality_that_a_run_has_holds(runs, kind: str, expected: list[str]):
    before = {path: path.read_bytes() for path in Path(runs(kind)).rglob("*") if path.is_file()}
    result = check(runs(kind))
    found = verdicts(result)
    assert [name for name, verdict in found.items() if verdict == "holds"] == expected, found
    assert not failing(result)
    assert result.holds
    assert {path: path.read_bytes() for path in Path(runs(kind)).rglob("*") if path.is_file()} == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rings", "scenes", "patients", "molecules"])
def test_every_equality_holds_on_other_kinds_of_data(name: str, tmp_path: Path):
    if name == "molecules":
        pytest.importorskip("rdkit")
    settings = {"data": {"num_rows": 120}, "model": {"model_dim": 16}}
    run = regard.train(name, out=tmp_path / name, steps=2, baseline=False, show_progress=False, settings=settings)
    result = check(run)
    assert result.holds, failing(result)
    assert set(TRAINED) <= {name for name, verdict in verdicts(result).items() if verdict == "holds"}


@pytest.fixture(scope="module")
def adapted(runs, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("adapted")
    regard.finetune(runs("labels"), labels(folder), out=folder / "run", method="lora", steps=2, show_progress=False)
    return str(folder / "run")


@pytest.mark.slow
def test_a_merged_adapter_equals_base_and_adapter(adapted: str, monkeypatch: pytest.MonkeyPatch):
    result = check(adapted)
    assert result.holds, failing(result)
    assert verdicts(result)["merged adapter"] == "holds"
    merged = LoRALinear.merged

    def doubled(layer: LoRALinear) -> torch.nn.Linear:
        found = merged(layer)
        found.weight.data *= 1.05
        return found

    monkeypatch.setattr(LoRALinear, "merged", doubled)
    assert "the first layer that differs is" in failing(check(adapted))["merged adapter"].where


@pytest.mark.slow
def test_training_that_is_resumed_without_the_optimizer_is_found(runs, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop, "restore_optimizer", lambda *given: None)
    assert "resumed training" in failing(check(runs("labels")))


@pytest.mark.slow
def test_a_mean_of_means_is_found(runs, monkeypatch: pytest.MonkeyPatch):
    gradients = Updater.gradients

    def averaged(updater: Updater, batches: list[Any]) -> torch.Tensor:
        total = torch.zeros(())
        for batch in batches:
            total = total + gradients(updater, [batch])
        for parameter in updater.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= len(batches)
        return total

    monkeypatch.setattr(Updater, "gradients", averaged)
    found = failing(check(runs("pairs")))
    assert set(found) == {"accumulated batches"}
    assert "gradient of" in found["accumulated batches"].where


@pytest.mark.slow
def test_a_mean_of_what_two_processes_compute_is_found(runs, processes: None, monkeypatch: pytest.MonkeyPatch):
    found = {each.name: each for each in check(runs("labels")).equalities}["two processes"]
    assert (found.verdict, found.tolerance) == ("holds", 1e-6)
    monkeypatch.setattr(module, "_SHARED_GRADIENTS", "tests.runs.averaged_gradients:write_shared_gradients")
    wrong = failing(check(runs("labels")))
    assert set(wrong) == {"two processes"}
    assert "gradient of" in wrong["two processes"].where


@pytest.mark.slow
def test_a_cache_that_is_not_read_is_found(runs, monkeypatch: pytest.MonkeyPatch):
    step = Transformer.step

    def forgetful(model: Transformer, tokens: torch.Tensor, state: Any) -> Any:
        logits, after = step(model, tokens, state)
        return (logits, model.initial_state(batch_size=len(tokens))) if tokens.size(1) == 1 else (logits, after)

    monkeypatch.setattr(Transformer, "step", forgetful)
    found = failing(check(runs("text")))
    assert "cached decoding: state that grows" in found
    assert found["cached decoding: state that grows"].where == "the first that differs is logits of token 2"


@pytest.mark.slow
def test_padding_that_is_read_is_found(runs, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "regard.models.transformer.model.padding_mask",
        lambda lengths, num_keys: torch.ones(len(lengths), 1, 1, num_keys, dtype=torch.bool),
    )
    found = failing(check(runs("labels")))
    assert "batched inputs" in found
    assert "the first layer that differs is" in found["batched inputs"].where


@pytest.mark.slow
def test_an_export_with_other_weights_is_found(runs, exports: None, monkeypatch: pytest.MonkeyPatch):
    exporter = EXPORTERS.find("hf")

    def perturbed(model: ExportableModel, path: Path, **options: Any) -> str:
        written = exporter.write(model, path, **options)
        next(model.model.parameters()).data.mul_(1.1)
        return written

    monkeypatch.setattr(module, "EXPORTERS", [exporter])
    assert verdicts(check(runs("text")))["export to hf"] == "holds"
    monkeypatch.setitem(EXPORTERS._loaded, "hf", replace(exporter, write=perturbed))
    assert set(failing(check(runs("text")))) == {"export to hf"}


@pytest.mark.slow
def test_the_command_prints_a_table_and_exits_with_1_where_an_equality_fails(runs, monkeypatch: pytest.MonkeyPatch):
    answer = call("check", runs("labels"), "--json").succeeds()
    found = json.loads(answer.out.splitlines()[-1])
    assert found["holds"] is True
    assert {each["verdict"] for each in found["equalities"]} == {"holds", "not applicable"}
    monkeypatch.setattr(loop, "restore_optimizer", lambda *given: None)
    answer = call("check", runs("labels"))
    assert answer.code == 1
    assert "1 fail: resumed training" in answer.out


@pytest.mark.slow
def test_a_run_without_its_data_is_checked_as_far_as_possible(tmp_path: Path):
    data = pairs(tmp_path)
    regard.train(data, out=tmp_path / "run", steps=2, baseline=False, show_progress=False, task="seq2seq")
    Path(data).unlink()
    found = {each.name: each for each in check(tmp_path / "run").equalities}
    assert found["resumed training"].verdict == found["accumulated batches"].verdict == "not applicable"
    assert "the training data is needed" in found["resumed training"].compared
    assert found["batched predictions"].verdict == "holds"


@pytest.mark.slow
def test_a_task_of_another_package_is_checked(tmp_path: Path):
    with installed_plugin(tmp_path / "site"):
        run = regard.train("walks", task="trend", out=tmp_path / "run", steps=2, show_progress=False)
        result = check(run)
        assert result.holds, failing(result)
        assert verdicts(result)["resumed training"] == "holds"


def test_no_run_is_one_line(tmp_path: Path):
    call("check", tmp_path / "none").fails_with("none")
