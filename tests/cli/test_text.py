"""Language models from the command line: train on a text, generate, score, evaluate."""

import json
import math
from pathlib import Path

import pytest
from safetensors.torch import load_file

LINES = ["the cat sat on the mat", "the dog ran to the door", "a bird sang in the tree", "the mat lay at the door"]
SMALL = ["--set", "model.num_layers=1", "--set", "model.model_dim=16", "--set", "model.num_heads=2",
         "--set", "model.feedforward_dim=32", "--set", "task.window=16", "--set", "train.batch_tokens=128",
         "--set", "train.device=cpu", "--steps", 12]  # fmt: skip


def _weights(run: Path) -> dict[str, list]:
    return {name: tensor.tolist() for name, tensor in load_file(run / "model.safetensors").items()}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "story.txt"
    path.write_text("\n".join(LINES * 40) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trained(regard, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "story"
    answer = regard("train", text, "--tokenizer", "characters", "--out", out, *SMALL).succeeds()
    assert "task language-modeling, by the data" in answer.err
    assert "muon" in answer.err
    assert f"next:\n  regard generate {out} PROMPT " in answer.err
    return out


def test_a_text_is_taken_for_text_and_reported(trained: Path):
    assert (trained / "report.html").exists()
    look = json.loads((trained / "ledger.jsonl").read_text().splitlines()[-1])
    assert look["scores"].keys() >= {"perplexity", "bits_per_byte"}
    assert "stride:16" in look["scores"]["perplexity"]["signature"]


def test_generation_begins_with_the_prompt_and_a_seed_repeats_it(regard, trained: Path):
    first, again, other = (
        regard("generate", trained, "the cat", "--max-tokens", 20, "--seed", seed, "--quiet").succeeds().out
        for seed in (3, 3, 4)
    )
    assert first.startswith("the cat")
    assert first == again
    assert first != other


def test_generation_as_json_with_several_samples(regard, trained: Path):
    answer = regard("generate", trained, "the", "--samples", 2, "--max-tokens", 5, "--json").succeeds()
    found = json.loads(answer.out.splitlines()[-1])
    assert found["prompt"] == "the"
    assert [text["seed"] for text in found["texts"]] == [0, 1]
    assert all(0 < len(text["text"]) <= 5 for text in found["texts"])


def test_without_a_prompt_the_model_begins(regard, trained: Path):
    assert regard("generate", trained, "--max-tokens", 5, "--temperature", 0, "--quiet").succeeds().out


def test_the_score_of_a_text_is_the_sum_of_its_tokens(regard, trained: Path):
    answer = regard("score", trained, "the cat", "tac eht", "--tokens", "--json").succeeds()
    scores = json.loads(answer.out.splitlines()[-1])["scores"]
    for score, text in zip(scores, ("the cat", "tac eht"), strict=True):
        assert score["log_probability"] == pytest.approx(sum(score["log_probabilities"]))
        assert len(score["tokens"]) == len(text) + 1
        bits = -score["log_probability"] / math.log(2) / len(text)
        assert score["bits_per_byte"] == pytest.approx(bits)
    plain = regard("score", trained, "the cat", "--quiet").succeeds().out
    assert plain.split("\t")[0] == f"{scores[0]['log_probability']:.4f}"


def test_a_file_is_scored_by_perplexity(regard, trained: Path, text: Path, tmp_path: Path):
    other = tmp_path / "other.txt"
    other.write_text(text.read_text().replace("cat", "dog").replace("the", "a"))
    answer = regard("evaluate", trained, other, "--json").succeeds()
    assert json.loads(answer.out.splitlines()[-1])["perplexity"]["value"] > 1.0
    regard("evaluate", trained, text).fails_with("sealed test set")


def test_attention_of_a_language_model_is_its_own(regard, trained: Path, tmp_path: Path):
    regard("attention", trained, "the cat", "--out", tmp_path / "a.html").succeeds()
    regard("attention", trained, "the cat", "--kind", "cross").fails_with("no attention of kind 'cross'")


def test_a_resumed_run_ends_as_one_that_was_never_stopped(regard, text: Path, tmp_path: Path):
    # A rate that does not depend on the budget, so that six steps are the first half of twelve.
    options = [*SMALL[:-2], "--set", "train.schedule=constant", "--set", "train.warmup_steps=3"]
    for name, steps in (("whole", 12), ("halves", 6)):
        out = tmp_path / name
        regard("train", text, "--tokenizer", "characters", "--out", out, *options, "--steps", steps).succeeds()
    answer = regard("train", "--out", tmp_path / "halves", "--resume", "--steps", 12).succeeds()
    assert "step 6" in answer.err
    whole, halves = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "halves")
    )
    assert [line["step"] for line in halves if "valid_loss" in line] == [6, 12]
    for key in ("loss", "valid_loss"):
        assert [line[key] for line in halves if key in line][-1] == [line[key] for line in whole if key in line][-1]
    assert _weights(tmp_path / "whole") == _weights(tmp_path / "halves")


@pytest.mark.parametrize("model", ["lstm", "convolution", "gpt2", "llama"])
def test_every_family_is_a_language_model(regard, text: Path, tmp_path: Path, model: str):
    out = tmp_path / model
    common = ["--set", "model.num_layers=1", "--set", "model.model_dim=16", "--set", "task.window=16", "--steps", 3]
    regard("train", text, "--model", model, "--out", out, *common, "--set", "train.device=cpu", "--quiet").succeeds()
    assert regard("generate", out, "the", "--max-tokens", 4, "--quiet").succeeds().out.startswith("the")


def test_words_and_isolated_documents(regard, tmp_path: Path):
    path = tmp_path / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in LINES * 40))
    out = tmp_path / "run"
    answer = regard("train", path, "--tokenizer", "words", "--out", out, *SMALL[:-2], "--steps", 3).succeeds()
    assert "task language-modeling" in answer.err
    assert "isolate = true" in (out / "run.toml").read_text()


@pytest.mark.parametrize(
    ("content", "options", "parts"),
    [
        (b"\x7fELF\0\0\0" * 50, [], ["not text", "NUL"]),
        (b"short", ["--set", "data.splits=[0.6, 0.2, 0.2]"], ["too few for one window of 8"]),
        (b"a text of some length " * 20, ["--set", "task.window=5000"], ["too few for one window of 5,000"]),
        (b"a text of some length " * 20, ["--model", "gpt2", "--set", "model.context_length=8", "--set",
                                          "task.window=9"], ["context_length=8"]),
    ],
)  # fmt: skip
def test_a_bad_text_is_one_line(regard, tmp_path: Path, content: bytes, options: list[str], parts: list[str]):
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    regard(
        "train", path, "--task", "language-modeling", "--out", tmp_path / "run", "--steps", 1, "--quiet", *options
    ).fails_with(*parts)


def test_a_prompt_longer_than_the_context_is_told(regard, text: Path, tmp_path: Path):
    out = tmp_path / "run"
    short = ["--model", "gpt2", "--set", "model.context_length=16", "--tokenizer", "characters"]
    regard("train", text, *short, "--out", out, *SMALL, "--quiet").succeeds()
    regard("generate", out, "the cat sat on the mat and ran", "--quiet").fails_with("16")
    regard("score", out, "the cat sat on the mat and ran", "--quiet").fails_with("the model reads at most 15")


def test_only_a_language_model_generates(regard, trained: Path, tmp_path: Path):
    regard("generate", tmp_path / "none").fails_with("no run at")
    regard("generate", trained, "the", "--top-k", 5, "--temperature", 0, "--quiet").fails_with(
        "top_k needs a temperature"
    )


def test_a_model_that_cannot_keep_documents_apart_says_so(regard, tmp_path: Path):
    path = tmp_path / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in LINES * 40))
    small = ["--set", "model.num_layers=1", "--set", "model.model_dim=16", "--set", "task.window=16", "--steps", 3]
    answer = regard("train", path, "--model", "lstm", "--out", tmp_path / "run", "--device", "cpu", *small).succeeds()
    assert "models of family recurrent cannot isolate documents" in answer.err


def test_the_stride_is_a_choice_and_stands_in_the_signature(regard, trained: Path):
    side_by_side, closer = (
        json.loads(regard("evaluate", trained, *more, "--json").succeeds().out.splitlines()[-1])["perplexity"]
        for more in ([], ["--stride", 4])
    )
    assert "stride:4" in closer["signature"]
    assert closer["value"] != side_by_side["value"]
    regard("evaluate", trained, "--stride", 17, "--quiet").fails_with("stride must be between 1 and the window of 16")


def test_settings_of_a_decoder_are_for_text(regard):
    assert 'name = "language-modeling"' in regard("settings", "--model", "gpt2").succeeds().out
    assert 'name = "seq2seq"' in regard("settings", "--model", "lstm").succeeds().out


def test_words_have_a_space_between_prompt_and_continuation(regard, text: Path, tmp_path: Path):
    out = tmp_path / "run"
    regard("train", text, "--tokenizer", "words", "--out", out, *SMALL, "--quiet").succeeds()
    assert regard("generate", out, "the", "--max-tokens", 3, "--temperature", 0, "--quiet").succeeds().out[3] in " \n"


def test_ngrams_are_mixed_in_by_a_setting(regard, text: Path, tmp_path: Path):
    given = ["train", text, "--tokenizer", "words", *SMALL, "--out"]
    regard(*given, tmp_path / "run", "--set", "task.ngrams=2").succeeds()
    assert {"tables.keys_2", "network_weight"} <= _weights(tmp_path / "run").keys()
    assert json.loads(regard("evaluate", tmp_path / "run", "--json").succeeds().out)["perplexity"]["value"] < 10
    assert regard("generate", tmp_path / "run", "the cat", "--max-tokens", 4).succeeds().out.strip()
    refused = regard("export", tmp_path / "run", "--out", tmp_path / "out", "--to", "hf")
    refused.fails_with("task.ngrams must be 0 to export a model, got 2")
    regard(*given, tmp_path / "other", "--quiet", "--set", "task.ngrams=6").fails_with("task.ngrams", "5")
