"""Language models from the command line: train on a text, generate, score, evaluate."""

import json
import math
from pathlib import Path

import pytest

LINES = ["the cat sat on the mat", "the dog ran to the door", "a bird sang in the tree", "the mat lay at the door"]
SMALL = ["--set", "model.num_layers=1", "--set", "model.model_dim=16", "--set", "model.num_heads=2",
         "--set", "model.feedforward_dim=32", "--set", "data.window=16", "--set", "train.batch_tokens=128",
         "--set", "train.device=cpu", "--steps", 12]  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "story.txt"
    path.write_text("\n".join(LINES * 40) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trained(regard, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "story"
    answer = regard("train", text, "--tokenizer", "characters", "--out", out, *SMALL).is_well()
    assert "task language: running text" in answer.err
    assert "muon" in answer.err
    return out


def test_a_text_is_taken_for_text_and_reported(trained: Path):
    assert (trained / "report.html").exists()
    look = json.loads((trained / "ledger.jsonl").read_text().splitlines()[-1])
    assert look["scores"].keys() >= {"perplexity", "bits_per_byte"}
    assert "stride:16" in look["scores"]["perplexity"]["signature"]


def test_generation_begins_with_the_prompt_and_a_seed_repeats_it(regard, trained: Path):
    first, again, other = (
        regard("generate", trained, "the cat", "--max-length", 20, "--seed", seed, "--quiet").is_well().out
        for seed in (3, 3, 4)
    )
    assert first.startswith("the cat")
    assert first == again
    assert first != other


def test_generation_as_json_with_several_samples(regard, trained: Path):
    answer = regard("generate", trained, "the", "--samples", 2, "--max-length", 5, "--json").is_well()
    found = json.loads(answer.out.splitlines()[-1])
    assert found["prompt"] == "the"
    assert [text["seed"] for text in found["texts"]] == [0, 1]
    assert all(0 < len(text["text"]) <= 5 for text in found["texts"])


def test_without_a_prompt_the_model_begins(regard, trained: Path):
    assert regard("generate", trained, "--max-length", 5, "--temperature", 0, "--quiet").is_well().out


def test_the_score_of_a_text_is_the_sum_of_its_tokens(regard, trained: Path):
    answer = regard("score", trained, "the cat", "tac eht", "--tokens", "--json").is_well()
    scores = json.loads(answer.out.splitlines()[-1])["scores"]
    for score, text in zip(scores, ("the cat", "tac eht"), strict=True):
        assert score["log_probability"] == pytest.approx(sum(score["log_probabilities"]))
        assert len(score["tokens"]) == len(text) + 1
        bits = -score["log_probability"] / math.log(2) / len(text)
        assert score["bits_per_byte"] == pytest.approx(bits)
    plain = regard("score", trained, "the cat", "--quiet").is_well().out
    assert plain.split("\t")[0] == f"{scores[0]['log_probability']:.4f}"


def test_a_file_is_scored_by_perplexity(regard, trained: Path, text: Path, tmp_path: Path):
    other = tmp_path / "other.txt"
    other.write_text(text.read_text().replace("cat", "dog").replace("the", "a"))
    answer = regard("evaluate", trained, other, "--json").is_well()
    assert json.loads(answer.out.splitlines()[-1])["perplexity"]["value"] > 1.0
    regard("evaluate", trained, text).says_no("sealed test set")


def test_attention_of_a_language_model_is_its_own(regard, trained: Path, tmp_path: Path):
    regard("attention", trained, "the cat", "--out", tmp_path / "a.html").is_well()
    regard("attention", trained, "the cat", "--kind", "cross").says_no("no attention of kind 'cross'")


def test_it_goes_on_where_it_was(regard, trained: Path, text: Path, tmp_path: Path):
    out = tmp_path / "resumed"
    regard("train", text, "--tokenizer", "characters", "--out", out, *SMALL[:-1], 6, "--quiet").is_well()
    regard("train", "--out", out, "--resume", "--steps", 12, "--quiet").is_well()
    assert len((out / "metrics.jsonl").read_text().splitlines()) >= 2


@pytest.mark.parametrize("model", ["lstm", "convolution", "gpt2", "llama"])
def test_every_family_is_a_language_model(regard, text: Path, tmp_path: Path, model: str):
    out = tmp_path / model
    common = ["--set", "model.num_layers=1", "--set", "model.model_dim=16", "--set", "data.window=16", "--steps", 3]
    regard("train", text, "--model", model, "--out", out, *common, "--set", "train.device=cpu", "--quiet").is_well()
    assert regard("generate", out, "the", "--max-length", 4, "--quiet").is_well().out.startswith("the")


def test_words_and_isolated_documents(regard, tmp_path: Path):
    path = tmp_path / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in LINES * 40))
    out = tmp_path / "run"
    answer = regard("train", path, "--tokenizer", "words", "--out", out, *SMALL[:-2], "--steps", 3).is_well()
    assert "task language" in answer.err
    assert "isolate = true" in (out / "run.toml").read_text()


@pytest.mark.parametrize(
    ("content", "options", "parts"),
    [
        (b"\x7fELF\0\0\0" * 50, [], ["not text", "NUL"]),
        (b"short", ["--set", "data.splits=[0.6, 0.2, 0.2]"], ["too few for one window of 8"]),
        (b"a text of some length " * 20, ["--set", "data.window=5000"], ["too few for one window of 5,000"]),
        (b"a text of some length " * 20, ["--model", "gpt2", "--set", "model.context_length=8", "--set",
                                          "data.window=9"], ["context_length=8"]),
    ],
)  # fmt: skip
def test_a_bad_text_is_one_line(regard, tmp_path: Path, content: bytes, options: list[str], parts: list[str]):
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    regard("train", path, "--task", "language", "--out", tmp_path / "run", "--steps", 1, "--quiet", *options).says_no(
        *parts
    )


def test_a_prompt_longer_than_the_context_is_told(regard, text: Path, tmp_path: Path):
    out = tmp_path / "run"
    short = ["--model", "gpt2", "--set", "model.context_length=16", "--tokenizer", "characters"]
    regard("train", text, *short, "--out", out, *SMALL, "--quiet").is_well()
    regard("generate", out, "the cat sat on the mat and ran", "--quiet").says_no("16")
    regard("score", out, "the cat sat on the mat and ran", "--quiet").says_no("the model reads 15 at most")


def test_only_a_language_model_generates(regard, trained: Path, tmp_path: Path):
    regard("generate", tmp_path / "none").says_no("no run at")
    regard("generate", trained, "the", "--top-k", 5, "--temperature", 0, "--quiet").says_no("top_k has a meaning only")


def test_a_model_that_cannot_keep_documents_apart_says_so(regard, tmp_path: Path):
    path = tmp_path / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in LINES * 40))
    small = ["--set", "model.num_layers=1", "--set", "model.model_dim=16", "--set", "data.window=16", "--steps", 3]
    answer = regard("train", path, "--model", "lstm", "--out", tmp_path / "run", "--device", "cpu", *small).is_well()
    assert "a recurrent model cannot keep documents apart" in answer.err


def test_the_stride_is_a_choice_and_stands_in_the_signature(regard, trained: Path):
    side_by_side, closer = (
        json.loads(regard("evaluate", trained, *more, "--json").is_well().out.splitlines()[-1])["perplexity"]
        for more in ([], ["--stride", 4])
    )
    assert "stride:4" in closer["signature"]
    assert closer["value"] != side_by_side["value"]
    regard("evaluate", trained, "--stride", 17, "--quiet").says_no("stride must lie in 1 to the window of 16")


def test_settings_of_a_decoder_are_for_text(regard):
    assert 'task = "language"' in regard("settings", "--model", "gpt2").is_well().out
    assert 'task = "translation"' in regard("settings", "--model", "lstm").is_well().out


def test_words_have_a_space_between_prompt_and_continuation(regard, text: Path, tmp_path: Path):
    out = tmp_path / "run"
    regard("train", text, "--tokenizer", "words", "--out", out, *SMALL, "--quiet").is_well()
    assert regard("generate", out, "the", "--max-length", 3, "--temperature", 0, "--quiet").is_well().out[3] in " \n"
