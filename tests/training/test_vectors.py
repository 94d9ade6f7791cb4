import pytest
import torch

import regard
from regard.errors import CheckpointError, ConfigError
from regard.training.checkpoints import read_tensors
from regard.training.vectors import as_wide_as

ROWS = [(f"the {word} was {'good' if number % 2 else 'bad'}", "yes" if number % 2 else "no")
        for number, word in enumerate(["soup", "film", "book", "wine", "song"] * 12)]  # fmt: skip
SHAPE = {"num_layers": 1, "model_dim": 24, "num_heads": 2}
SMALL = {"task": "classification", "train": {"max_steps": 2, "device": "cpu"}}


def trained(folder, preset, **settings):
    return regard.train(ROWS, out=folder, model=preset, settings={**SMALL, **settings}, show_progress=False)


def table_of(run) -> torch.Tensor:
    return read_tensors(run.folder.model_path)[0]["body.embedding.weight"]


def test_vectors_of_another_width_keep_what_they_can():
    table = torch.randn(50, 7) @ torch.diag(torch.tensor([9.0, 5.0, 3.0, 0.1, 0.1, 0.01, 0.01]))
    assert as_wide_as(table, 7) is table
    centered = table - table.mean(dim=0)
    narrow, wide = as_wide_as(table, 3), as_wide_as(table, 11)
    kept = torch.linalg.svdvals(centered)[:3].square().sum()
    torch.testing.assert_close(narrow.square().sum(), kept)
    torch.testing.assert_close(wide @ wide.T, centered @ centered.T)
    assert wide.shape == (50, 11)


@pytest.mark.slow
def test_a_run_starts_with_the_tokenizer_and_the_vectors_of_another(tmp_path):
    base = trained(tmp_path / "base", "transformer-tiny", model=SHAPE, data={"tokenizer": "words"})
    still = {"max_steps": 1, "learning_rate": 1e-12, "average": 0.0, "weight_decay": 0.0, "device": "cpu"}
    run = trained(
        tmp_path / "run",
        "lstm-tiny",
        model={"num_layers": 1, "model_dim": 24},
        data={"vectors": str(base.folder.path)},
        train=still,
    )
    assert run.tokenizer.to_json() == base.tokenizer.to_json()
    ours, theirs = table_of(run), table_of(base)
    torch.testing.assert_close(ours / ours.norm(), theirs / theirs.norm())
    with pytest.raises(CheckpointError, match="vectors belong to a tokenizer"):
        trained(tmp_path / "no", "lstm-tiny", data={"vectors": str(base.folder.path), "tokenizer": "characters"})
    with pytest.raises(ConfigError, match="a base has its own"):
        regard.finetune(base.folder.path, ROWS, out=tmp_path / "no", settings={"data": {"vectors": "x"}})


def test_a_folder_without_weights_is_named(tmp_path):
    with pytest.raises(regard.RegardError, match=r"tokenizer\.json"):
        trained(tmp_path / "no", "lstm-tiny", data={"vectors": str(tmp_path / "nowhere")})
