"""Fine-tuned runs: they start from their base, and a run with LoRA is its base and a few weights."""

import shutil
from pathlib import Path

import pytest
import torch

import regard
from regard.adapters.lora import LoraConfig
from regard.errors import CheckpointError, ConfigError, DataError
from regard.runs.finetune import finetune
from regard.runs.run import load
from regard.runs.train import train
from regard.training.checkpoints import read_tensors
from regard.training.finetuning import default_learning_rate

ROWS = [
    (f"{word} film number {number}", label) for number in range(60) for word, label in (("good", "+"), ("bad", "-"))
]
TEXT = "".join(f"line {number} of {number % 7} and {number % 11}.\n" for number in range(120))
TRAIN = {"max_steps": 6, "batch_tokens": 300, "evaluate_every": 3, "precision": "float32", "device": "cpu"}
TINY = {
    "model": {"num_layers": 2, "model_dim": 12, "num_heads": 2, "feedforward_dim": 17, "dropout": 0.0},
    "task": {"tokenizer": "characters", "ngrams": 0},
    "train": TRAIN,
}


def tune(base: Path, rows, out: Path, **options):
    options = {"settings": {"train": TRAIN}, **options}
    return finetune(base, rows, out=out, show_progress=False, **options)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier."""
    out = tmp_path_factory.mktemp("runs") / "base"
    return train(ROWS, out=out, task="text-classification", settings=TINY, show_progress=False).path


@pytest.mark.parametrize("method", ["all", "head", "top", "lora"])
def test_a_run_starts_from_another_and_predicts_the_same_once_loaded(base: Path, tmp_path: Path, method):
    settings = {"train": TRAIN, "finetune": {"top_layers": 1, "lora": LoraConfig(rank=2).model_dump()}}
    made = tune(base, ROWS, tmp_path / "tuned", method=method, settings=settings)
    predictions = [each.probabilities for each in made.predict_full(["good film", "bad film"])]
    again = load(tmp_path / "tuned")
    assert [each.probabilities for each in again.predict_full(["good film", "bad film"])] == predictions
    stored = read_tensors(made.folder.model_path)[0]
    whole = read_tensors(base / "model.safetensors")[0]
    if method == "lora":
        numbers = [sum(tensor.numel() for tensor in tensors.values()) for tensors in (stored, whole)]
        assert numbers[0] < 0.7 * numbers[1]
        assert not any(name.endswith("embedding.weight") for name in stored)
    else:
        assert stored.keys() == whole.keys()
        is_changed = not torch.equal(stored["body.embedding.weight"], whole["body.embedding.weight"])
        assert is_changed == (method == "all")


@pytest.mark.parametrize("bits", [8, 4])
def test_an_adapter_of_quantized_weights_stores_none_of_them(base: Path, tmp_path: Path, bits: int):
    settings = {"train": TRAIN, "finetune": {"lora": LoraConfig(rank=2, bits=bits).model_dump()}}
    made = tune(base, ROWS, tmp_path / "tuned", method="lora", settings=settings)
    stored = read_tensors(made.folder.model_path)[0]
    assert {name.rpartition(".")[2] for name in stored if name.startswith("body.")} == {"a", "b"}
    assert load(tmp_path / "tuned").predict("good film") == made.predict("good film")


def test_an_adapter_rejects_another_base_and_names_one_that_is_missing(base: Path, tmp_path: Path):
    own = tmp_path / "base"
    shutil.copytree(base, own)
    tune(own, ROWS, tmp_path / "tuned", method="lora")
    other = {**TINY, "train": {**TRAIN, "max_steps": 1, "seed": 7}}
    train(ROWS, out=own, overwrite=True, task="text-classification", settings=other, show_progress=False)
    with pytest.raises(CheckpointError, match="another base"):
        load(tmp_path / "tuned").predict("good film")
    shutil.rmtree(own)
    with pytest.raises(CheckpointError, match=r"finetune\.base"):
        load(tmp_path / "tuned").predict("good film")


def test_a_base_that_does_not_fit_the_task_is_an_error(base: Path, tmp_path: Path):
    documents = [(f"{text} {label}",) for text, label in ROWS]
    with pytest.raises(ConfigError, match="mask token"):
        tune(base, documents, tmp_path / "masked", task="masked-language-modeling")
    with pytest.raises(ConfigError, match="decoder-only"):
        tune(base, documents, tmp_path / "causal", task="language-modeling")
    with pytest.raises(ConfigError, match="an encoder and a decoder"):
        tune(base, ROWS, tmp_path / "pairs", task="seq2seq")
    settings = {"train": TRAIN, "task": {"embeddings": str(base)}}
    with pytest.raises(ConfigError, match=r"task\.embeddings"):
        tune(base, ROWS, tmp_path / "vectors", task="text-classification", settings=settings)
    with pytest.raises(DataError, match="no data"):
        tune(base, None, tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []


def test_rates_of_layers_are_not_for_muon(base: Path, tmp_path: Path):
    for setting in ({"layer_decay": 0.9}, {"gradual": True}):
        settings = {"train": {**TRAIN, "optimizer": "muon"}, "finetune": setting}
        with pytest.raises(ConfigError, match=r"finetune\.layer_decay.*muon"):
            tune(base, ROWS, tmp_path / "tuned", settings=settings)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["all", "lora"])
def test_few_rows_have_a_lower_learning_rate_unless_one_is_set(base: Path, tmp_path: Path, method):
    many = [(f"{text} of {copy}", label) for copy in range(11) for text, label in ROWS]
    rates = []
    for number, (rows, given) in enumerate(((ROWS, {}), (many, {}), (ROWS, {"learning_rate": 0.007}))):
        settings = {"train": {**TRAIN, "max_steps": 1, **given}}
        run = tune(base, rows, tmp_path / f"tuned-{number}", method=method, settings=settings)
        rates.append(run.settings.train.learning_rate)
    assert rates[1] == default_learning_rate(12, method)
    assert rates[0] == pytest.approx(rates[1] / 3, rel=0.05)  # it has two digits
    assert rates[2] == 0.007


@pytest.mark.parametrize(("num_valid", "steps"), [(40, [0, 24]), (120, [0, 10, 20, 24])])
def test_few_validation_rows_are_evaluated_for_the_probe_and_at_the_end(
    base: Path, tmp_path: Path, num_valid: int, steps: list[int]
):
    lines = ["text\tlabel", *("\t".join(row) for row in (ROWS * 2)[:num_valid])]
    (tmp_path / "valid.tsv").write_text("\n".join(lines) + "\n")
    settings = {"data": {"valid": [str(tmp_path / "valid.tsv")]}, "train": {"max_steps": 24, "batch_tokens": 300}}
    tuned = tune(base, ROWS, tmp_path / "tuned", method="head", settings=settings)
    assert [line["step"] for line in tuned.folder.read_metrics() if "valid_loss" in line] == steps


@pytest.fixture(scope="module")
def language_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A language model that was trained here, and the same one exported and imported again."""
    folder = tmp_path_factory.mktemp("language")
    torch.set_default_dtype(torch.float32)
    (folder / "text.txt").write_text(TEXT)
    settings = {**TINY, "task": {"tokenizer": "bpe", "vocab_size": 300, "window": 16}}
    settings["model"] = {**TINY["model"], "context_length": 32}
    own = train(folder / "text.txt", out=folder / "own", model="gpt2-tiny", settings=settings, show_progress=False)
    regard.export_model(own, folder / "hf", to="hf")
    return {"own": own.path, "imported": regard.import_model(folder / "hf", folder / "imported")}


@pytest.mark.parametrize("base", ["own", "imported"])
@pytest.mark.parametrize("method", ["all", "lora"])
def test_a_language_model_is_fine_tuned_on_text(language_models: dict[str, Path], tmp_path: Path, base: str, method):
    path = tmp_path / "more.txt"
    path.write_text(TEXT.replace("line", "verse"))
    before = load(language_models[base])
    made = regard.finetune(
        before.path, str(path), out=tmp_path / "tuned", method=method, settings={"train": TRAIN}, show_progress=False
    )
    assert made.settings.task.name == "language-modeling"
    assert made.settings.finetune is not None
    assert made.tokenizer.encode(["verse 3 of"]) == before.tokenizer.encode(["verse 3 of"])
    assert made.score("verse 3 of 3").log_probability != before.score("verse 3 of 3").log_probability
    again = load(tmp_path / "tuned")
    assert again.generate("verse 3", max_tokens=5) == made.generate("verse 3", max_tokens=5)
    assert again.evaluate().scores["perplexity"].value > 1.0
