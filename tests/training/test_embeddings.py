"""Models that are initialized with the token embeddings of another run."""

import pytest
import torch

import regard
from regard.errors import CheckpointError, ConfigError
from regard.training.checkpoints import read_tensors
from regard.training.finetuning import resize_embeddings

ROWS = [(f"the {word} was {'good' if number % 2 else 'bad'}", "yes" if number % 2 else "no")
        for number, word in enumerate(["soup", "film", "book", "wine", "song"] * 12)]  # fmt: skip
TRAIN = {"max_steps": 1, "device": "cpu"}


def trained(folder, preset, *, task, model=None, **train):
    settings = {"task": {"name": "text-classification", **task}, "model": model or {}, "train": {**TRAIN, **train}}
    return regard.train(ROWS, out=folder, model=preset, settings=settings, show_progress=False)


def table_of(run) -> torch.Tensor:
    return read_tensors(run.folder.model_path)[0]["body.embedding.weight"]


def test_resized_embeddings_keep_the_largest_variances():
    table = torch.randn(50, 7) @ torch.diag(torch.tensor([9.0, 5.0, 3.0, 0.1, 0.1, 0.01, 0.01]))
    assert resize_embeddings(table, 7) is table
    centered = table - table.mean(dim=0)
    narrow, wide = resize_embeddings(table, 3), resize_embeddings(table, 11)
    kept = torch.linalg.svdvals(centered)[:3].square().sum()
    torch.testing.assert_close(narrow.square().sum(), kept)
    torch.testing.assert_close(wide @ wide.T, centered @ centered.T)
    assert wide.shape == (50, 11)


@pytest.mark.slow
@pytest.mark.usefixtures("cache", "single_precision")
def test_a_run_is_initialized_with_the_tokenizer_and_the_embeddings_of_another(tmp_path):
    shape = {"num_layers": 1, "model_dim": 24, "num_heads": 2}
    base = trained(tmp_path / "base", "transformer-tiny", task={"tokenizer": "words"}, model=shape)
    run = trained(
        tmp_path / "run", "lstm-tiny", task={"embeddings": str(base.path)}, model={"num_layers": 1, "model_dim": 24},
        learning_rate=1e-12, ema_decay=0.0, weight_decay=0.0,
    )  # fmt: skip
    assert run.tokenizer.to_json() == base.tokenizer.to_json()
    ours, theirs = table_of(run), table_of(base)
    torch.testing.assert_close(ours / ours.norm(), theirs / theirs.norm())
    with pytest.raises(CheckpointError, match="tokenizer"):
        trained(tmp_path / "no", "lstm-tiny", task={"embeddings": str(base.path), "tokenizer": "characters"})
    with pytest.raises(ConfigError, match=r"task\.embeddings"):
        regard.finetune(base.path, ROWS, out=tmp_path / "no", settings={"task": {"embeddings": "x"}, "train": TRAIN})


@pytest.mark.usefixtures("cache")
def test_a_folder_without_embeddings_is_named(tmp_path):
    with pytest.raises(regard.RegardError, match="nowhere"):
        trained(tmp_path / "no", "lstm-tiny", task={"embeddings": str(tmp_path / "nowhere")})
