"""Questions from a file to answers, by the command line's own road."""

import json

import regard

ARTICLES = [
    {"title": f"{name}", "paragraphs": [{"context": f"{name} was born in {town} in {year}.", "qas": [
        {"id": f"{name}{year}", "question": f"Where was {name} born?",
         "answers": [{"text": town, "answer_start": len(name) + 13}]}]}]}
    for name, town in (("Ada", "London"), ("Emmy", "Erlangen"), ("Kurt", "Brno"), ("Alan", "Maida"))
    for year in range(1900, 1915)
]  # fmt: skip


def test_a_run_on_questions_reports_and_answers(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "questions.json"
    path.write_text(json.dumps({"version": "1.1", "data": ARTICLES}))
    settings = {
        "model": {"num_layers": 1, "model_dim": 16, "num_heads": 2, "feedforward_dim": 16},
        "train": {"max_steps": 3, "batch_tokens": 300},
        "task": {"tokenizer": "characters"},
    }
    run = regard.train(str(path), out=tmp_path / "run", settings=settings, show_progress=False)
    assert run.task.name == "question-answering"
    assert run.folder.report_path.exists()
    assert "answer_f1" in run.evaluate(str(path)).scores
    assert isinstance(run.predict("Where was Ada born?\tAda was born in London in 1900."), str)
