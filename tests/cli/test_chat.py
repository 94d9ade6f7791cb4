"""From a file of conversations to a chat, with every command that a run has."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fastapi.testclient import TestClient

import regard as library
from regard.cli import chat as chat_command
from regard.generation.config import GenerationConfig
from regard.generation.engine import Engine, Request
from regard.models import Transformer
from regard.serving.app import make_app

SMALL = ["--model", "llama-tiny", "--set", "model.num_layers=1", "--set", "model.model_dim=16",
         "--set", "model.num_heads=2", "--set", "task.max_length=64", "--device", "cpu"]  # fmt: skip


def talk(number: int) -> dict:
    answer = "odd" if number % 2 else "even"
    return {
        "messages": [
            {"role": "user", "content": f"is {number}?"}, {"role": "assistant", "content": answer},
            {"role": "user", "content": "sure?"}, {"role": "assistant", "content": "yes"},
        ]
    }  # fmt: skip


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chats") / "chats.jsonl"
    path.write_text("".join(json.dumps(talk(number)) + "\n" for number in range(70)))
    return path


@pytest.fixture(scope="module")
def run(chats: Path, regard) -> Path:
    torch.set_default_dtype(torch.float32)
    found = regard("train", chats, "--steps", 6, *SMALL, "--out", chats.parent / "run").succeeds()
    assert "task instruction-tuning, by the data: conversations (messages)" in found.err
    assert "the answer to the nearest training prompt" in found.err
    assert "next:\n  regard chat" in found.err
    return chats.parent / "run"


def converse(run: Path, *options: str, typed: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "regard", "chat", str(run), "--max-tokens", "4", "--device", "cpu", *options]
    return subprocess.run(command, input=typed, capture_output=True, encoding="utf-8", timeout=300, check=False)


@pytest.mark.slow
def test_each_line_of_a_pipe_has_an_answer(run, tmp_path):
    out = tmp_path / "talk.jsonl"
    found = converse(run, "--json", typed=f"is 3?\n\nsure?\n/retry\n/system Be brief.\n/save {out}\n/quit\nlost\n")
    assert found.returncode == 0, found.stderr
    answers = [json.loads(line) for line in found.stdout.splitlines()]
    assert len(answers) == 3
    assert answers[1]["answer"] == answers[2]["answer"]  # greedy
    messages = json.loads(out.read_text())["messages"]
    assert messages[0] == {"role": "system", "content": "Be brief."}
    assert [message["content"] for message in messages if message["role"] == "user"] == ["is 3?", "sure?"]
    failed = converse(run, typed="/wrong\n")
    assert failed.returncode == 2
    assert failed.stderr.strip().endswith("unknown command /wrong: /retry, /system, /save, /help, /quit")


def test_an_interrupted_answer_is_kept_as_far_as_it_was_written(run, monkeypatch, capsys):
    class Stops:
        def chat(self, messages, **options):
            yield "half an "
            yield "answer"
            raise KeyboardInterrupt

    conversation = library.runs.conversation.Conversation(Stops())  # pyright: ignore
    chat_command._converse(conversation, iter(["Hi", "/retry", "again"]), json=False, goes_on=True)
    assert [message["content"] for message in conversation.messages] == [
        "Hi", "half an answer", "again", "half an answer",
    ]  # fmt: skip
    assert capsys.readouterr().out == "half an answer\n" * 3


def test_every_command_works_on_a_run_of_conversations(run, chats, regard, tmp_path):
    assert regard("predict", run, "is 3?", "--max-tokens", 3).succeeds()
    scores = json.loads(regard("evaluate", run, chats, "--json").succeeds().out.splitlines()[-1])
    assert scores["perplexity"]["interval"]
    assert "exact_match" in scores
    regard("test", run).succeeds()
    regard("certificate", run).succeeds()
    assert regard("generate", run, "is 3?", "--max-tokens", 3).succeeds().out is not None
    regard("score", run, "even").succeeds()
    regard("export", run, "--to", "hf", "--out", tmp_path / "hf").succeeds()
    assert "bos_token" in (tmp_path / "hf" / "chat_template.jinja").read_text()
    resumed = regard("train", "--out", run, "--resume", "--steps", 8).succeeds()
    assert "resuming from step 6" in resumed.err


@pytest.mark.slow
def test_a_run_of_conversations_is_tuned_further_with_its_own_template(run, chats, regard, tmp_path):
    template = tmp_path / "turns.jinja"
    template.write_text("{% for m in messages %}{{ m.role }}={{ m.content }}{{ eos_token }}{% endfor %}")
    regard("finetune", run, chats, "--lora", "--steps", 2, "--device", "cpu", "--out", tmp_path / "lora").succeeds()
    other = ["--template", template, "--steps", 2, "--device", "cpu", "--out", tmp_path / "all"]
    regard("finetune", run, chats, *other).succeeds()
    assert library.load(tmp_path / "lora").chat_template == library.load(run).chat_template
    assert library.load(tmp_path / "all").chat_template == template.read_text()
    refused = regard("finetune", run, chats, "--head", "--device", "cpu", "--out", tmp_path / "head")
    assert refused.code == 2
    assert "adds no head to its base" in refused.err
    assert not (tmp_path / "head").exists()
    missing = regard("finetune", run, chats, "--template", tmp_path / "no.jinja", "--out", tmp_path / "no")
    assert "cannot read the chat template" in missing.err


def test_bad_conversations_are_one_line_and_leave_nothing(chats, regard, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text(chats.read_text() + 4 * (json.dumps({"messages": talk(1)["messages"][1:]}) + "\n"))
    found = regard("train", path, *SMALL, "--steps", 1, "--out", tmp_path / "run")
    assert found.code == 2
    assert (
        "4 of 74 rows of bad.jsonl have a conversation that starts with the assistant: lines 71, 72, 73, 74"
        in found.err
    )
    assert "--skip-bad skips them" in found.err
    assert not (tmp_path / "run").exists()


def test_a_model_of_pairs_answers_each_message(trained):
    found = library.load(trained, device="cpu")
    conversation = found.conversation()
    answers = ["".join(conversation.ask(text)) for text in ("4 March 2025", "3 May 1999")]
    assert answers == found.predict(["4 March 2025", "3 May 1999"])


def test_a_server_answers_in_the_form_of_the_openai_api(run):
    client = TestClient(make_app(library.load(run, device="cpu")))
    asked = {"messages": [{"role": "user", "content": "is 3?"}], "max_tokens": 4, "temperature": 0}
    answer = client.post("/v1/chat/completions", json=asked).json()
    text = answer["choices"][0]["message"]["content"]
    assert answer["object"] == "chat.completion"
    assert text == "".join(library.load(run, device="cpu").chat("is 3?", max_tokens=4, temperature=0.0))
    streamed = client.post("/v1/chat/completions", json={**asked, "stream": True}).text
    chunks = [line.removeprefix("data: ") for line in streamed.splitlines() if line.startswith("data: ")]
    assert chunks[-1] == "[DONE]"
    deltas = [json.loads(chunk)["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1]]
    assert "".join(deltas) == text
    assert client.get("/v1/models").json()["data"][0]["id"] == "run"
    refused = client.post("/v1/chat/completions", json={"messages": [{"content": "x"}]})
    assert refused.status_code == 400
    assert "a message without a role" in refused.json()["error"]


def test_the_next_turn_of_a_chat_processes_only_what_is_new():
    torch.set_default_dtype(torch.float64)
    model = Transformer.from_preset("gpt-tiny", vocab_size=23, num_layers=1).eval()
    prompt, longer = list(range(1, 12)), [*range(1, 12), 13, 14, 15]
    fresh = Engine(model, GenerationConfig(), end=None)
    expected = [fresh.run([Request(each, limit=5)]) for each in (prompt, longer)]
    engine, sizes = Engine(model, GenerationConfig(), end=None), []
    inner = engine._model
    step = inner.step
    inner.step = lambda tokens, state: sizes.append(tokens.size(1)) or step(tokens, state)  # pyright: ignore
    found = []
    for each in (prompt, longer):
        engine.keep(each)
        found.append([list(engine.stream(Request(each, limit=5)))])
    assert found == expected
    assert [size for size in sizes if size > 1] == [len(prompt) - 1, len(longer) - len(prompt)]
