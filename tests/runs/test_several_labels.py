"""Rows with any number of labels: from rows to a run with a report, and to sets of labels."""

import torch

from regard.runs.launch import train

ROWS = [
    (f"{first} and {second} number {number}", ",".join(sorted({first, second})))
    for number in range(20)
    for first, second in (("red", "blue"), ("red", "red"), ("green", "blue"))
]
TINY = {
    "task": "classification",
    "model": {"num_layers": 1, "model_dim": 12, "num_heads": 3, "feedforward_dim": 17},
    "train": {"max_steps": 2, "batch_tokens": 300, "precision": "float32"},
    "data": {"tokenizer": "words", "label_separator": ","},
}


def test_a_run_on_rows_of_several_labels_is_judged_by_its_f1(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    torch.set_default_dtype(torch.float32)
    run = train(ROWS, out=tmp_path / "run", settings=TINY, show_progress=False)
    assert run.folder.report_path.stat().st_size > 0
    evaluation = run.judge(ROWS[:9])
    assert evaluation.headline == "micro_f1"
    assert set(evaluation.scores) >= {"micro_f1", "macro_f1", "subset_accuracy"}
    assert set(run.predictions(["red and blue"])[0].probabilities or {}) == {"red", "blue", "green"}
