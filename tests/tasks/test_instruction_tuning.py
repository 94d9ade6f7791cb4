"""The loss is on answers only, and conversations of a window do not attend to each other."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from tests.contracts.test_tasks import rows_of_chats
from tests.tiny import Tiny, tiny

import regard
from regard.data.conversation_sources import conversation_of
from regard.data.settings import DataConfig
from regard.data.sources import NamedRows
from regard.errors import ConfigError, DataError
from regard.nn.losses import IGNORED
from regard.tasks import instruction_tuning, make_task
from regard.tasks.instruction_tuning import make_packed_batch, pack_windows
from regard.tasks.registry import detect_task
from regard.text import chat as chat_module
from regard.training.defaults import draft, resolve

SMALL = {"num_layers": 2, "model_dim": 12, "num_heads": 2, "feedforward_dim": 17, "dropout": 0.0}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(tmp_path_factory.mktemp("cache")))
        return tiny(
            "instruction-tuning", rows_of_chats(53), preset="gpt-tiny", max_length=71,
            data={"splits": [0.7, 0.2, 0.1]}, model={**SMALL, "positions": "learned"},
        )  # fmt: skip


def test_the_tokenizer_reads_long_conversations_as_a_whole():
    """Cut to the part of a cell that other tokenizers are trained on, messages would be no JSON."""
    rows = [{"messages": [{"role": "user", "content": f"{row} " + 600 * "ab "}, {"role": "assistant", "content": "ab"},
                          {"role": "user", "content": "ab"}, {"role": "assistant", "content": "ab"}]}
            for row in range(30)]  # fmt: skip
    made = tiny("instruction-tuning", NamedRows(rows), preset="gpt-tiny", max_length=3000, model=SMALL)
    assert made.task.tokenizer.count_unknown(made.task.tokenizer.encode(["ab"])) == 0
    assert "role" not in json.dumps(json.loads(made.task.tokenizer.to_json())["model"]["vocab"])


@pytest.fixture
def model(made: Tiny):
    return made.build(std=0.3)


def conversations(made: Tiny, count: int = 5):
    tokens, flags = made.task.encode_rows(made.data.held_out["valid"][:count])
    return [(np.array(ids), np.array(marks)) for ids, marks in zip(tokens, flags, strict=True)]


@torch.no_grad()
def test_the_loss_is_the_sum_over_the_tokens_of_answers_by_hand(made: Tiny, model):
    """Each answer and its end token, given all before it: no token of the template, and none of the user."""
    rows = made.data.held_out["valid"][:3]
    total, count = 0.0, 0
    for row in rows:
        messages = conversation_of(*row)
        for place, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            prompt = made.task.chat.encode(messages[:place])
            answer = [*made.task.tokenizer.encode([message["content"]])[0], made.task.tokenizer.end]
            logits = model.logits(model.hidden_states(torch.tensor([[*prompt, *answer]])))[0].log_softmax(-1)
            for number, token in enumerate(answer):
                total -= float(logits[len(prompt) + number - 1, token])
            count += len(answer)
    batch = next(made.task.row_batches(rows))
    assert batch.num_targets == count
    assert float(made.task.loss(model, batch)) == pytest.approx(total, rel=1e-9)
    assert sum(made.likelihoods(model, rows).losses) == pytest.approx(total, rel=1e-9)


def gradients(model):
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}


def test_packed_conversations_have_the_loss_and_the_gradients_of_separate_ones(made: Tiny, model):
    some = conversations(made)
    packed = make_packed_batch([some[:3], some[3:]], made.task.tokenizer, isolate=True, length=97)
    assert packed.documents is not None
    loss = made.task.loss(model, packed)
    loss.backward()
    found = gradients(model)
    model.zero_grad()
    alone = [make_packed_batch([[each]], made.task.tokenizer, isolate=False) for each in some]
    expected = torch.stack([made.task.loss(model, each) for each in alone]).sum()
    expected.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(found, gradients(model))
    assert packed.num_targets == sum(each.num_targets for each in alone)
    assert packed.num_tokens == sum(each.num_tokens for each in alone)


@torch.no_grad()
def test_without_isolation_conversations_would_see_each_other(made: Tiny, model):
    """What the test above would find: the same windows as one document have another loss."""
    some = conversations(made)
    losses = [
        float(made.task.loss(model, make_packed_batch([some], made.task.tokenizer, isolate=isolate, length=97)))
        for isolate in (True, False)
    ]
    assert losses[0] != pytest.approx(losses[1], rel=1e-4)


def test_a_change_of_one_conversation_leaves_the_others_of_its_window(made: Tiny, model):
    some = conversations(made, 3)
    changed = [(np.where(some[0][1] > 0, some[0][0], 7), some[0][1]), *some[1:]]
    states = []
    for window in (some, changed):
        batch = make_packed_batch([window], made.task.tokenizer, isolate=True)
        states.append(model.hidden_states(batch.tokens, documents=batch.documents)[0, len(some[0][0]) - 1 :])
    torch.testing.assert_close(*states)


def test_only_tokens_of_answers_are_targets(made: Tiny):
    (ids, flags), *_ = conversations(made, 1)
    batch = make_packed_batch([[(ids, flags)]], made.task.tokenizer, isolate=True)
    counted = batch.targets[0] != IGNORED
    assert counted.tolist() == flags[1:].astype(bool).tolist()
    assert batch.targets[0][counted].tolist() == ids[flags > 0].tolist()


def test_each_conversation_is_in_one_window_of_an_epoch(made: Tiny):
    batches = made.batches(batch_tokens=150)
    store = made.data.train
    assert sorted(row for window in batches.windows for row in window) == list(range(len(store)))
    lengths = store.lengths() - 1
    assert max(lengths[window].sum() for window in batches.windows) <= 71
    for epoch in range(2):
        numbers = range(epoch * batches.per_epoch, (epoch + 1) * batches.per_epoch)
        assert sum(batches.batch(number).num_tokens for number in numbers) == lengths.sum()


def test_windows_are_nearly_full():
    lengths = np.random.default_rng(5).integers(3, 41, 997)
    windows = pack_windows(lengths, np.arange(997), 67)
    assert len(windows) <= 1.05 * lengths.sum() / 67


def test_the_last_answer_alone_can_be_trained_on(made: Tiny):
    task: Any = make_task(made.task.settings.changed(answers="last"), made.data.codecs)
    row = next(row for row in made.data.held_out["valid"] if "why?" in row[0])
    both, last = (sum(each.encode_rows([row])[1][0]) for each in (made.task, task))
    assert last == 1 + len(task.tokenizer.encode([row[1]])[0]) < both


@pytest.mark.parametrize(("too_long", "kept"), [("leave-out", 1), ("cut", 2)])
def test_long_conversations_are_left_out_or_cut_and_counted(too_long, kept, monkeypatch, tmp_path):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    settings = made_settings(max_length=40, too_long=too_long, tokenizer="bytes")
    long = "long " * 20
    rows = [("a", "b"), (long, "answer"), *[(f"valid {number}", "c") for number in range(2)]]
    config = DataConfig(train=["memory"], splits=[0.5, 0.25, 0.25], order="rows")
    prepared = make_task(settings.task).prepare(config, rows)
    assert len(prepared.train) == kept
    notes = " ".join(prepared.notes)
    if too_long == "cut":
        assert "cut to their last 40 tokens: 1 of 2 training conversations" in notes
        task: Any = make_task(settings.task, prepared.codecs)
        batches = task.batches(prepared, batch_tokens=40, seed=0)
        shown = "".join(task.tokenizer.decode(batches.batch(number).tokens.tolist())[0] for number in range(2))
        assert "answer" in shown
    else:
        assert "left out of training: 1 rows with more than 40 tokens" in notes


def made_settings(**task):
    values = {"task": {"name": "instruction-tuning", "pack": True, "compare_answers": False, **task}}
    return draft({**values, "preset": "gpt-tiny"})


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ({"template": "\n{% if %}"}, r"task\.template is not a Jinja template: .* \(line 2\)"),
        ({"template": "chatml.jinja"}, r"task\.template is the text of a Jinja template that reads messages"),
        ({"prompt": "{{ a }}"}, r"task\.prompt and task\.answer belong together"),
        ({"format": "["}, r"task\.format must be a regular expression"),
    ],
)
def test_settings_that_cannot_be_used_are_an_error_at_once(task, reason):
    with pytest.raises(ConfigError, match=reason):
        made_settings(**task)


def test_a_recurrent_model_does_not_pack(made: Tiny):
    values = {"task": {"name": "instruction-tuning", "tokenizer": "bytes", "pack": True}, "train": {"max_steps": 1}}
    with pytest.raises(ConfigError, match=r"family recurrent cannot isolate conversations: task\.pack must be false"):
        resolve(draft({**values, "preset": "lstm-tiny"}), made.data)


ZEPHYR = "{% for m in messages %}{% if m.role in ('user', 'assistant') %}{{ m.content }}</s>{% endif %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (ZEPHYR, r"has the role 'tool', which the chat template does not write: row 2"),
        ("{% for m in messages %}{{ raise_exception('no') if m.role == 'tool' }}{{ m.content }}{% endfor %}",
         r"messages that cannot be rendered: the chat template rejects these messages: no \(line 1\): row 2"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{{ messages }}",
         r"does what is not allowed: more than 0\.2 seconds \(line 1\)"),
    ],
)  # fmt: skip
def test_what_a_template_does_not_accept_is_a_bad_row_or_an_error(template, reason, monkeypatch):
    monkeypatch.setattr(chat_module, "_MAX_SECONDS", 0.2)
    task = make_task(made_settings(template=template, tokenizer="bytes").task)
    user, tool, answer = ({"role": role, "content": "x"} for role in ("user", "tool", "assistant"))
    rows = regard.data.sources.NamedRows([{"messages": [user, answer]}, {"messages": [user, tool, answer]}])
    with pytest.raises(DataError, match=reason):
        list(task.open(DataConfig(train=["memory"]), rows).train)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (("messages",), "conversations (messages)"),
        (("prompt", "completion"), "prompts (prompt) and answers (completion)"),
        (("instruction", "input", "output"), "prompts (instruction, input) and answers (output)"),
    ],
)
def test_conversations_are_recognized(tmp_path, names, reason):
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    record = dict.fromkeys(names, "a text of words") if len(names) > 1 else {"messages": talk}
    path = tmp_path / "rows.jsonl"
    path.write_text((json.dumps(record) + "\n") * 30)
    found, detection = detect_task(DataConfig(train=[str(path)]))
    assert (found, detection.reason) == ("instruction-tuning", reason)


def test_other_pairs_and_preferences_are_not_taken_for_instructions(tmp_path):
    for names in (("source", "target"), ("prompt", "chosen", "rejected"), ("question", "answer")):
        path = tmp_path / f"{names[-1]}.jsonl"
        path.write_text("".join(json.dumps({name: f"{name} {row}" for name in names}) + "\n" for row in range(30)))
        assert detect_task(DataConfig(train=[str(path)]))[0] != "instruction-tuning"


def test_the_baseline_has_likelihoods_of_answers_and_the_nearest_answer(made: Tiny, model):
    rows = made.data.held_out["valid"]
    baseline = made.task.baseline(made.data)
    found = made.task.baseline_examples(baseline, rows)
    assert found.num_tokens == made.likelihoods(model, rows).counts
    assert np.isfinite(found.losses).all()
    known = made.data.train_rows()[0]
    assert made.task.baseline_examples(baseline, [known]).outputs == [known[1]]


def test_a_format_is_a_score_of_generated_answers(made: Tiny):
    task = make_task(made.task.settings.changed(format=r"the [a-z]+\."), made.data.codecs)
    changed = Tiny(task, made.data, made.settings)
    rows = [("a", "the sea."), ("b", "the sun.")]
    found = instruction_tuning.EvaluationData(
        rows, [instruction_tuning.Prediction("a", "the cat."), instruction_tuning.Prediction("b", "cat")],
        changed.likelihoods(made.build(std=0.1), rows),
    )  # fmt: skip
    scores = {score.name: score.value for score in task.scores(found)}
    assert scores["format_match"] == 0.5
    assert scores["exact_match"] == 0.0
