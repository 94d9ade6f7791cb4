"""Data and models of a tiny size, in the layouts of the public ones, for `--tiny`."""

import json
import lzma
import random
from collections.abc import Iterable
from pathlib import Path

NOUNS, ADJECTIVES = (
    ("film", "plot", "cast", "song", "scene"),
    (("good", "1"), ("bad", "0"), ("fine", "1"), ("dull", "0")),
)
GERMAN = {"the": "die", "film": "Film", "plot": "Handlung", "cast": "Truppe", "song": "Lied", "scene": "Szene",
          "is": "ist", "good": "gut", "bad": "schlecht", "fine": "fein", "dull": "fade"}  # fmt: skip
TOWNS = ("Rome", "Bern", "Lima")


def sentences(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Sentences with the label 0 or 1."""
    rng = random.Random(seed)
    chosen = [(rng.choice(NOUNS), *rng.choice(ADJECTIVES)) for _ in range(count)]
    return [(f"the {noun} is {word} {number}", label) for number, (noun, word, label) in enumerate(chosen)]


def write_text(path: Path, count: int = 150) -> Path:
    """A plain text of about 3,000 characters."""
    path.write_text("\n".join(text for text, _ in sentences(count)) + "\n", encoding="utf-8")
    return path


def write_multi30k(folder: Path) -> None:
    """Sentences and their translations, in the files of Multi30k."""
    folder.mkdir(parents=True)
    parts = {"train": 60, "val": 12, "test_2016_flickr": 6, "test_2017_flickr": 6}
    for seed, (part, count) in enumerate(parts.items()):
        english = [text for text, _ in sentences(count, seed)]
        german = [" ".join(GERMAN.get(word, word) for word in text.split()) for text in english]
        for column, lines in (("en", english), ("de", german)):
            _write_lines(folder / f"{part}.{column}.xz", lines)


def write_ptb(folder: Path) -> None:
    """A text in the files of the Penn Treebank."""
    folder.mkdir(parents=True)
    for seed, (part, count) in enumerate({"train": 900, "valid": 80, "test": 80}.items()):
        _write_lines(folder / f"ptb.{part}.txt.xz", [f" {text} " for text, _ in sentences(count, seed)])


def write_labelled(data: Path) -> None:
    """The files that the rows of `finetune.py` read: of SST, CoNLL-2003, SemEval-2014 and SQuAD."""
    for name in ("sst", "conll2003", "semeval14", "squad"):
        (data / name).mkdir(parents=True)
    for seed, (part, count) in enumerate({"train": 60, "dev": 8}.items()):
        rows = [f"{label}\t{text}" for text, label in sentences(count, seed)]
        _write_lines(data / f"sst/sst2-glue.{part}.tsv.xz", ["label\tsentence", *rows])
        _write_lines(data / f"sst/stsa.binary.{part}.xz", [row.replace("\t", " ") for row in rows])
    for seed, (part, count) in enumerate({"train": 50, "testa": 8, "testb": 8}.items()):
        rng = random.Random(seed)
        blocks = [f"Ada NNP I-NP I-PER\nin IN I-PP O\n{rng.choice(TOWNS)} NNP I-NP I-LOC\n{n} CD I-NP O\n"
                  for n in range(count)]  # fmt: skip
        _write_lines(data / f"conll2003/eng.{part}.xz", ["-DOCSTART- -X- O O\n", *blocks])
    for seed, (part, count) in enumerate({"Train_v2": 60, "Test_Gold": 8}.items()):
        found = [(text, "positive" if label == "1" else "negative") for text, label in sentences(count, seed)]
        entries = [
            f'<sentence id="{number}"><text>{text}</text><aspectCategories>'
            f'<aspectCategory category="{("food", "service")[number % 2]}" polarity="{label}"/>'
            "</aspectCategories></sentence>"
            for number, (text, label) in enumerate(found)
        ]
        document = ['<?xml version="1.0" encoding="UTF-8"?>', "<sentences>", *entries, "</sentences>"]
        _write_lines(data / f"semeval14/Restaurants_{part}.xml.xz", document)
    articles = [
        {"title": f"t{number}", "paragraphs": [_paragraph(number, n) for n in range(4)]} for number in range(20)
    ]
    _write_lines(data / "squad/dev-v1.1.json.xz", [json.dumps({"version": "1.1", "data": articles})])


def make_bert(folder: Path) -> Path:
    """A BERT with random weights, and its tokenizer, in Hugging Face's layout."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import BertConfig, BertModel, BertTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    inner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer, inner.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    texts = [text for text, _ in sentences(80)] + ["where is Ada ? Ada is in Rome Bern Lima"]
    inner.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=200, special_tokens=special))
    ends = [(name, inner.token_to_id(name)) for name in ("[SEP]", "[CLS]")]
    inner.post_processor = processors.BertProcessing(*ends)
    torch.manual_seed(0)
    config = BertConfig(vocab_size=inner.get_vocab_size(), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                        intermediate_size=32, max_position_embeddings=512)  # fmt: skip
    BertModel(config).save_pretrained(folder)
    BertTokenizerFast(tokenizer_object=inner).save_pretrained(folder)
    return folder


def make_llama(folder: Path) -> Path:
    """A language model of Llama's shape, trained for a step, as a GGUF file."""
    import regard

    settings = {
        "task": {"name": "language-modeling", "tokenizer": "bpe"},
        "model": {"num_layers": 1, "model_dim": 32, "num_heads": 2, "feedforward_dim": 32},
        "train": {"max_steps": 1, "batch_tokens": 128, "device": "cpu"},
    }
    text = write_text(folder / "text.txt")
    run = regard.train(str(text), model="llama", out=folder / "llama", settings=settings, show_progress=False)
    regard.export_model(run, folder / "llama.gguf", to="gguf")
    return folder / "llama.gguf"


def _paragraph(number: int, n: int) -> dict[str, object]:
    town = TOWNS[(number + n) % len(TOWNS)]
    answer = {"text": town, "answer_start": len("Ada is in ")}
    asked = {"id": f"{number}.{n}", "question": "where is Ada ?", "answers": [answer]}
    return {"context": f"Ada is in {town} {number} {n}", "qas": [asked]}


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    with lzma.open(path, "wt", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
