"""Low-rank approximations: the theorem of Eckart and Young, bytes, and a run that is truncated."""

from pathlib import Path

import pytest
import torch

from regard.errors import RegardError
from regard.lab.low_rank.approximation import (
    LowRankSizes,
    block_matrices,
    score_ranks,
    stored_numbers,
    study_low_rank,
    truncate,
    truncation_error,
    with_matrices,
)
from regard.models.transformer import Transformer, TransformerConfig
from regard.runs.train import train

TINY = LowRankSizes(ranks=(1, 3), model_dim=8, length=5, vocab_size=5, steps=2, batch_size=3)


def small_model() -> Transformer:
    shape = {"encoder_layers": 0, "decoder_layers": 1, "model_dim": 8, "num_heads": 2, "feedforward_dim": 12}
    return Transformer(TransformerConfig.read(shape), 7).eval()


def test_the_error_of_a_truncation_is_that_of_eckart_and_young_and_no_other_form():
    matrix = torch.randn(7, 11)
    values = torch.linalg.svdvals(matrix)
    for rank in (1, 3, 6):
        measured = float((matrix - truncate(matrix, rank)).square().sum() / matrix.square().sum())
        assert measured == pytest.approx(truncation_error(values, rank))
        squares = values.square()
        for wrong in (values[rank:].sum() / values.sum(), squares[rank + 1 :].sum() / squares.sum(),
                      squares[:rank].sum() / squares.sum(), squares[rank] / squares.sum() * (rank == 1)):  # fmt: skip
            assert measured != pytest.approx(float(wrong), rel=1e-3)
        assert int(torch.linalg.matrix_rank(truncate(matrix, rank))) == rank
    torch.testing.assert_close(truncate(matrix, 7), matrix)


def test_no_other_matrix_of_the_rank_is_nearer():
    matrix = torch.randn(5, 7)
    best = float((matrix - truncate(matrix, 2)).norm())
    for seed in range(20):
        torch.manual_seed(seed)
        near = torch.linalg.svd(truncate(matrix, 2) + 0.1 * torch.randn(5, 7), full_matrices=False)
        other = (near.U[:, :2] * near.S[:2]) @ near.Vh[:2]
        assert float((matrix - other).norm()) >= best


def test_factors_have_fewer_numbers_up_to_half_of_the_rank():
    matrices = {"a": torch.zeros(6, 10), "b": torch.zeros(4, 4)}
    assert stored_numbers(matrices, 1) == 16 + 8
    assert stored_numbers(matrices, 4) == 60 + 16


def test_full_rank_changes_nothing_and_the_copy_is_another_model():
    model = small_model()
    tokens = torch.randint(7, (2, 5))
    matrices = {name: truncate(weight.detach(), 8) for name, weight in block_matrices(model).items()}
    torch.testing.assert_close(with_matrices(model, matrices)(tokens), model(tokens))
    zeros = {name: torch.zeros_like(weight) for name, weight in matrices.items()}
    assert not torch.allclose(with_matrices(model, zeros)(tokens), model(tokens))
    torch.testing.assert_close(with_matrices(model, matrices)(tokens), model(tokens))


def test_an_update_of_rank_one_is_kept_by_rank_one():
    base = small_model()
    origin = {name: weight.detach().clone() for name, weight in block_matrices(base).items()}
    changed = {name: weight + torch.outer(torch.randn(weight.size(0)), torch.randn(weight.size(1)))
               for name, weight in origin.items()}  # fmt: skip
    tuned = with_matrices(base, changed)
    tokens = torch.randint(7, (3, 5))
    found = score_ranks(tuned, origin, (1, 2), lambda model: model(tokens).square().mean().detach(), "")
    assert found.losses[1] == pytest.approx(found.full)
    assert found.error[1] == pytest.approx(0.0, abs=1e-12)


def test_the_study_is_whole_without_a_run():
    study = study_low_rank(sizes=TINY)
    (table,) = study.tables
    assert [row[:2] for row in table.rows] == [
        [name, rank] for name in ("weights, truncated", "update, truncated", "LoRA") for rank in (1, 3)
    ]
    assert len(study.findings) == 4


def test_a_run_is_truncated_and_scored_on_its_validation_rows(tmp_path: Path):
    torch.set_default_dtype(torch.float32)
    rows = [f"a {word} film number {n}\t{label}" for n in range(40) for word, label in (("good", "yes"), ("bad", "no"))]
    (tmp_path / "films.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    shape = {"model_dim": 8, "num_layers": 1, "num_heads": 2, "feedforward_dim": 8}
    run = train(
        tmp_path / "films.tsv", out=tmp_path / "run", model="transformer-tiny", steps=2, device="cpu", baseline=False,
        settings={"model": shape, "task": {"ngrams": 0, "tokenizer": "words"}}, show_progress=False,
    )  # fmt: skip
    study = study_low_rank(data=str(run.path), sizes=TINY)
    assert [row[1] for row in study.tables[0].rows] == [1, 3]
    with pytest.raises(RegardError, match="no run at"):
        study_low_rank(data=str(tmp_path / "none"), sizes=TINY)
