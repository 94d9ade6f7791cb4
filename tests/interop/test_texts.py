"""Exports of real runs: from texts to the probabilities, numbers and embeddings that `predict` gives."""

import json
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import tokenizers
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from regard.interop.hf.tokenizer import tokenizer_with_template
from regard.interop.model import ExportableModel
from regard.runs.export import export_model
from regard.runs.finetune import finetune
from regard.runs.run import Run, load
from regard.runs.train import train
from regard.text.tokenizer import Tokenizer, train_tokenizer

WORDS = ("good", "bad", "fine")
SIZES = {"num_layers": 1, "model_dim": 12, "num_heads": 2, "feedforward_dim": 17}
BERT: dict[str, Any] = {
    **SIZES, "decoder_layers": 0, "block": "post-norm", "positions": "learned", "embedding_norm": True,
    "scale_embeddings": False, "activation": "gelu", "context_length": 40, "num_segments": 2,
}  # fmt: skip
TRAIN = {"max_steps": 20, "batch_tokens": 300, "learning_rate": 0.01, "precision": "float32", "device": "cpu"}
LABELED = [(f"A {WORDS[number % 3]} film, number {number}", WORDS[number % 3]) for number in range(90)]
PAIRED = [(f"number {n}", f"a {WORDS[n % 3]} film", "yes" if n % 2 else "no") for n in range(90)]
SEVERAL = [(f"{WORDS[n % 3]} and {WORDS[n % 2]}, {n}", f"{WORDS[n % 3]},{WORDS[n % 2]}") for n in range(90)]
RATED = [(f"a {WORDS[number % 3]} film, {number}", str(100.0 + 7 * (number % 3))) for number in range(90)]


@pytest.fixture(autouse=True)
def _single_precision(exact_and_repeatable: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    # Sizes are symbols while a graph is traced, and no annotation knows of such.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def probabilities(run: Run, texts: list[str]) -> torch.Tensor:
    return torch.tensor([list((each.probabilities or {}).values()) for each in run.predict_full(texts)])


@pytest.mark.parametrize(
    ("task", "rows", "more"),
    [
        ("text-classification", LABELED, {"tokenizer": "bpe"}),
        pytest.param("text-classification", PAIRED, {"tokenizer": "unigram"}, marks=pytest.mark.slow),
        pytest.param(
            "text-classification",
            SEVERAL,
            {"tokenizer": "characters", "lowercase": True, "label_separator": ","},
            marks=pytest.mark.slow,
        ),
        pytest.param("regression", RATED, {"tokenizer": "words"}, marks=pytest.mark.slow),
    ],
)
def test_onnxruntime_gets_from_texts_to_what_predict_returns(tmp_path: Path, task: str, rows, more: dict[str, Any]):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    settings = {"model": SIZES, "task": {"max_length": 24, **more}, "train": TRAIN}
    run = train(rows, out=tmp_path / "run", task=task, settings=settings, show_progress=False)
    made, out = export_model(run, tmp_path / "onnx", to="onnx"), tmp_path / "onnx"
    assert made.texts is not None
    assert made.texts.num_texts == min(8, len(run.folder.read_held_out("valid"))) > 1
    assert made.texts.difference < 1e-4 * (1 if task == "text-classification" else 100)
    assert "texts" in str(made)
    # By what a program in another language would do, also for a text that is truncated.
    tokenizer = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    config = json.loads((out / "config.json").read_text())
    session = onnxruntime.InferenceSession(str(out / "model.onnx"), providers=["CPUExecutionProvider"])
    names = {each.name for each in session.get_inputs()}
    texts = [rows[1][0] + " and so on" * 9, rows[5][0]] if len(rows[0]) == 2 else ["\t".join(rows[4][:2])]
    found = []
    for text in texts:
        encoding = tokenizer.encode(*text.split("\t"))
        feed = {"input_ids": encoding.ids, "attention_mask": encoding.attention_mask}
        feed |= {"token_type_ids": encoding.type_ids} if "token_type_ids" in names else {}
        found.append(session.run(None, {name: np.array([ids]) for name, ids in feed.items()})[0][0])
    logits = torch.from_numpy(np.stack(found))
    if task == "regression":
        expected = torch.tensor([[float(run.predict(text))] for text in texts])
        assert config["problem_type"] == "regression"
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
        return
    assert [config["id2label"][str(number)] for number in range(len(config["id2label"]))] == run.task.label_codec.labels
    assert config["activation"] == ("sigmoid" if "label_separator" in more else "softmax")
    found = logits.sigmoid() if config["activation"] == "sigmoid" else logits.softmax(dim=-1)
    torch.testing.assert_close(found, probabilities(run, texts), rtol=1e-4, atol=1e-4)


@pytest.fixture
def tuned(tmp_path: Path) -> Run:
    """The documented route: a model of texts, fine-tuned with LoRA for labels."""
    pairs = [(f"a {WORDS[number % 3]} film, {number}", f"{WORDS[number % 3]} film {number}") for number in range(60)]
    settings = {"model": BERT, "task": {"tokenizer": "bpe", "max_length": 32}, "train": {**TRAIN, "max_steps": 3}}
    train(pairs, out=tmp_path / "base", task="sentence-embedding", settings=settings, show_progress=False)
    options = {"train": {**TRAIN, "max_steps": 3}, "finetune": {"lora": {"rank": 2}}}
    return finetune(
        tmp_path / "base", LABELED, out=tmp_path / "tuned", method="lora", settings=options, show_progress=False
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_a_model_that_is_fine_tuned_with_lora_is_exported_to_transformers_and_to_peft(tuned: Run, tmp_path: Path):
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    made = export_model(tuned, tmp_path / "hf", to="hf")
    assert made.texts is not None
    assert made.texts.outputs == "probabilities"
    assert made.texts.difference < 1e-5
    export_model(tuned, tmp_path / "adapter", to="peft")
    base = export_model(tmp_path / "base", tmp_path / "plain", to="hf")
    assert base.texts is not None
    assert base.texts.outputs == "embeddings"
    model = transformers.AutoModel.from_pretrained(tmp_path / "plain")
    model = peft.PeftModel.from_pretrained(model, str(tmp_path / "adapter")).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "adapter")
    texts = [row[0] for row in LABELED[:3]]
    encoded = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    mask = encoded["attention_mask"][..., None]
    with torch.no_grad():
        vectors = (model(**encoded).last_hidden_state * mask).sum(dim=1) / mask.sum(dim=1)
    layer = load_file(tmp_path / "adapter" / "2_Dense" / "model.safetensors")
    found = F.linear(vectors, layer["linear.weight"], layer["linear.bias"]).softmax(dim=-1)
    torch.testing.assert_close(found, probabilities(tuned, texts), rtol=1e-4, atol=1e-4)
    assert load(tmp_path / "tuned").predict(texts) == tuned.predict(texts)


def with_processor(tokenizer: Tokenizer, single: list[str], pair: list[str]) -> Tokenizer:
    """The tokenizer with a rule of its own for special tokens."""
    inner = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    specials = [("<s>", tokenizer.start), ("</s>", tokenizer.end)]
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single=" ".join(single), pair=" ".join(pair), special_tokens=specials
    )
    return Tokenizer(inner)


@pytest.mark.parametrize(
    ("single", "pair"),
    [
        (["<s>", "$A", "</s>"], ["<s>", "$A", "</s>", "</s>", "$B", "</s>"]),  # of RoBERTa
        (["<s>", "$A"], ["<s>", "$A", "<s>", "$B"]),  # of Llama
        (["<s>", "$A", "</s>"], ["<s>", "$A", "</s>", "$B:1", "</s>:1"]),  # of BERT: ours as well
        (["$A"], ["$A", "$B"]),
    ],
)
def test_a_written_tokenizer_adds_the_tokens_that_the_model_reads(exportable, single: list[str], pair: list[str]):
    plain = train_tokenizer(["the heather there", "in the other theatre"] * 20, "bpe", 290)
    ours: ExportableModel = exportable("labels", BERT)
    written = tokenizer_with_template(
        ExportableModel(
            model=ours.model,
            config=ours.config,
            tokenizer=with_processor(plain, single, pair),
            spec=ours.spec,
            build=ours.build,
        )
    )
    read = tokenizers.Tokenizer.from_str(written)
    (first,), (second,) = plain.encode(["the other"]), plain.encode(["there"])
    one = [plain.start, *first, plain.end]
    assert read.encode("the other").ids == one
    both = read.encode("the other", "there")
    assert both.ids == [*one, *second, plain.end]
    assert both.type_ids == [0] * len(one) + [1] * (len(second) + 1)
