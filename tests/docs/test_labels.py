"""What the page on labels shows can be typed."""

import json
from pathlib import Path

import pytest
import torch

SMALL = "--set model.num_layers=1 --set model.model_dim=32"
WORDS = ["a", "film", "to", "remember", "good", "bad", "two", "hours", "that", "i", "shall", "not", "get", "back"]


@pytest.fixture
def labels_page():
    from tests.docs.conftest import ROOT, Page

    return Page(ROOT / "docs" / "labels.md")


@pytest.fixture
def reviews(workplace: Path) -> Path:
    """A workplace with reviews, and with a tiny encoder in the layout that the page imports."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    rows = [(f"{word} film number {n}", label) for n in range(60) for word, label in (("good", "good"), ("bad", "bad"))]
    for name, some in (("reviews.tsv", rows[:100]), ("more.tsv", rows[100:])):
        lines = ["sentence\tlabel", *("\t".join(row) for row in some)]
        (workplace / name).write_text("\n".join(lines) + "\n")
    base = workplace / "all-MiniLM-L6-v2"
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=64,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(base)
    inner = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=60, special_tokens=specials, show_progress=False)
    inner.train_from_iterator([" ".join(WORDS)], trainer)
    assert inner.get_vocab_size() <= 60
    inner.save(str(base / "tokenizer.json"))
    names = {f"{kind}_token": name for kind, name in zip(("pad", "unk", "cls", "sep", "mask"), specials, strict=True)}
    (base / "special_tokens_map.json").write_text(json.dumps(names))
    return workplace


@pytest.mark.slow
def test_the_commands_and_the_program_run_in_the_order_they_stand_in(labels_page, reviews, run_inside, capsys):
    for command in labels_page.short_commands():
        more = {"finetune": " --steps 3", "train": f" {SMALL}"}.get(command.split()[1], "")
        code, out, err = run_inside(command + more)
        assert code == 0, f"{command}\n{err}"
        assert out.strip(), f"{command} printed nothing"
    (program,) = labels_page.blocks("python")
    exec(program.replace('out="runs/python"', 'out="runs/python", settings={"train": {"max_steps": 3}}'), {})
    assert capsys.readouterr().out.strip()
    assert (reviews / "runs" / "reviews" / "model.safetensors").stat().st_size < 40_000
