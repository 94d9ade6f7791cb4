"""Token classification: tags, losses with and without a CRF, and predictions."""

from typing import Any

import pytest
import torch
from tests.tasks.token_classification.rows import PLAIN_ROWS, entity_rows
from tests.tiny import BODIES, Tiny, tiny

from regard.errors import ConfigError
from regard.models.heads import HeadConfig
from regard.tasks.task import Objective
from regard.tasks.token_classification.sentences import words_of
from regard.tasks.token_classification.task import TokenClassifier


def prepared(rows: Any, **sections: Any) -> Tiny:
    return tiny("token-classification", rows, **{"tokenizer": "characters", **sections})


def model_for(made: Tiny) -> Any:
    model = made.build()
    if model.window is not None:
        torch.nn.init.normal_(model.window.table.weight)
    if model.crf is not None:
        for parameter in model.crf.parameters():
            torch.nn.init.normal_(parameter)
    return model


@pytest.mark.parametrize("body", BODIES)
def test_logits_are_those_of_the_hidden_state_at_each_position(body: str):
    model = TokenClassifier(BODIES[body], HeadConfig(pooling="mean"), 31, 5).eval()
    source, lengths = torch.randint(3, 31, (3, 7)), torch.tensor([7, 2, 5])
    positions = torch.arange(7).expand(3, -1)
    together = model(source, positions, lengths)
    assert together.shape == (3, 7, 5)
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(
            together[row : row + 1, :length], model(source[row : row + 1, :length], positions[:1, :length])
        )


@pytest.mark.parametrize("crf", [False, True])
@pytest.mark.parametrize("rows", [entity_rows(), PLAIN_ROWS], ids=["entities", "tags"])
def test_the_loss_matches_a_loop_over_words(rows, crf: bool):
    made = prepared(rows, crf=crf)
    model = model_for(made)
    batch = made.batches(batch_tokens=300, seed=0).batch(0)
    expected = torch.zeros(())
    for row in range(batch.source.size(0)):
        length = batch.source.size(1) if batch.lengths is None else int(batch.lengths[row])
        count = int(batch.num_words[row])
        states = model.body.encode(batch.source[row : row + 1, :length]).hidden_states[0]
        logits = model.head(torch.stack([states[int(place)] for place in batch.positions[row, :count]]))
        places = batch.positions[row : row + 1, :count]
        logits = logits + model.window(batch.source[[row]], places, batch.forms[[row]], batch.affixes[[row]])[0]
        tags = batch.tags[row, :count].tolist()
        if model.crf is not None:
            expected = expected - model.crf.log_likelihood(logits[None], torch.tensor([tags]))[0]
        else:
            for some, tag in zip(logits, tags, strict=True):
                expected = expected - some.log_softmax(dim=0)[tag]
    assert batch.num_targets == int(batch.num_words.sum())
    torch.testing.assert_close(made.task.loss(model, batch), expected)


def test_batches_of_a_bucket_have_one_shape():
    made = prepared(entity_rows())
    padded = made.batches(has_fixed_shapes=True)
    batches = [padded.batch(number) for number in range(padded.per_epoch)]
    assert all(batch.positions.shape == batch.source.shape for batch in batches)
    assert len({batch.source.shape for batch in batches}) <= len(padded.sampler.buckets)


def test_capitalization_is_an_input_of_the_model():
    made = prepared(entity_rows(), lowercase=True)
    assert made.settings.task.capitalization, "it is the default where the tokenizer lower-cases texts"
    assert not prepared(entity_rows()).settings.task.capitalization
    model = made.build()
    lower, upper = (made.predict(model, [text])[0].output for text in ("ada sang", "Ada sang"))
    assert lower == upper, "the embeddings of forms are initially zero"
    batches = [next(made.task.row_batches([(text, "O O")])) for text in ("ada sang", "ADA sang")]
    torch.testing.assert_close(batches[0].source, batches[1].source)
    torch.nn.init.normal_(model.forms.weight)
    assert abs(float((made.task.loss(model, batches[0]) - made.task.loss(model, batches[1])).detach())) > 1e-6
    with pytest.raises(ConfigError, match=r"task\.capitalization"):
        prepared(entity_rows(), capitalization=True, preset="gpt-tiny")


def test_affixes_and_neighbors_are_features_of_a_word():
    made = prepared(entity_rows())
    assert made.settings.task.features, "they are the default of models that are trained from scratch"
    model = model_for(made).eval()
    assert model.affixes.weight.abs().sum() == 0, "the embeddings of affixes are initially zero"
    (batch,) = made.task.row_batches([("we saw Bob there", "O O B-PER O")])
    term = model.window(batch.source, batch.positions, batch.forms, batch.affixes)
    for column, others in (("source", {0, 1, 2, 3}), ("affixes", {1, 2, 3}), ("forms", {1, 2, 3})):
        values = getattr(batch, column).clone()
        place = int(batch.positions[0, 2])
        values[0, place] += 1
        changed = model.window(*({**vars(batch), column: values}[name] for name in
                                 ("source", "positions", "forms", "affixes")))  # fmt: skip
        is_changed = (changed != term).any(dim=2)[0]
        assert set(is_changed.nonzero()[:, 0].tolist()) == others
    with pytest.raises(ConfigError, match=r"task\.features"):
        prepared(entity_rows(), features=True, preset="gpt-tiny")


def test_what_is_in_the_padding_does_not_change_the_loss():
    made = prepared(entity_rows(), crf=True)
    model = model_for(made)
    batch = next(made.task.row_batches([("Ada sang", "B-PER O"), ("we saw Bob there", "O O B-PER O")]))
    source, lengths, positions, words, tags, weights, *features = batch.tensors()
    length, count = int(lengths[0]), int(words[0])
    assert source.size(1) > length
    source, positions, tags = source.clone(), positions.clone(), tags.clone()
    source[0, length:], positions[0, count:], tags[0, count:] = 3, 5, 1
    changed = batch.with_tensors([source, lengths, positions, words, tags, weights, *features])
    torch.testing.assert_close(made.task.loss(model, changed), made.task.loss(model, batch))


def test_entity_tags_of_any_scheme_are_learned_in_bio():
    made, other = prepared(entity_rows()), prepared(entity_rows(first="I"))
    labels = made.task.tag_codec.labels
    assert labels[0] == "O"
    assert sorted(labels) == sorted(other.task.tag_codec.labels) == ["B-HOUSE", "B-PER", "I-HOUSE", "I-PER", "O"]
    assert made.task.tag_codec.counts["I-PER"] == 0
    assert any("IO;" in note for note in other.data.notes)
    assert made.task.tag_codec.has_entities
    assert not prepared(PLAIN_ROWS).task.tag_codec.has_entities


def test_an_invalid_tag_begins_an_entity_and_is_reported():
    rows = entity_rows()
    rows[7] = (["the", "Ada", "x"], ["O", "I-PER", "O"])
    made = prepared(rows)
    assert any("1 sentence" in note and "BIO" in note for note in made.data.notes)
    (batch,) = made.task.row_batches([("the Ada x", "O I-PER O")])
    assert made.task.tag_codec.decode(batch.tags.tolist()) == ["O B-PER O"]


@pytest.mark.parametrize("crf", [False, True])
def test_each_word_has_a_tag_and_a_crf_predicts_valid_ones(crf: bool):
    made = prepared(entity_rows(), max_length=19, crf=crf)
    inputs = ["Ada sang", "", "we saw Ada and Bob and nobody else at all", " Bob  sang "]
    found = [words_of(each.output) for each in made.predict(model_for(made), inputs)]
    assert [len(tags) for tags in found] == [2, 0, 10, 2]
    assert found[2][-4:] == ["O"] * 4
    if crf:
        for tags in found:
            steps = zip(["O", *tags], tags, strict=False)
            assert all(tag[0] != "I" or before[1:] == tag[1:] for before, tag in steps)


def test_scores_of_entities_and_of_plain_tags():
    made = prepared(entity_rows())
    rows = made.data.held_out["valid"]
    scores = made.scores(rows, [row[1] for row in rows])
    assert scores[made.task.headline(rows)] == scores["entity_f1"] == 1.0
    plain = prepared(PLAIN_ROWS)
    rows = [("a run", "D V"), ("aa run off", "X V A")]
    found = plain.scores(rows, ["D V", "D V A"])
    assert found["accuracy"] == pytest.approx(4 / 5)
    assert found["macro_f1"] == pytest.approx((2 / 3 + 0 + 1 + 1) / 4)
    assert plain.task.headline(rows) == "accuracy"


def test_a_tag_that_training_did_not_see_is_reported_and_counts_as_an_error(tmp_path):
    (tmp_path / "valid.conll").write_text("a Q\nb V\n\n")
    made = prepared(PLAIN_ROWS, data={"valid": [str(tmp_path / "valid.conll")]})
    (warning,) = [note for note in made.data.notes if "Q" in note]
    assert "validation" in warning
    (batch,) = made.task.row_batches([("a b", "Q V")])
    likelihoods = made.likelihoods(made.build(), [("a b", "Q V")])
    assert likelihoods.counts == [1]
    assert batch.num_targets == 2
    assert made.scores([("a b", "Q V")], ["V V"])["accuracy"] == 0.5


def test_rdrop_is_zero_where_both_passes_agree_and_is_not_for_a_crf():
    made = prepared(entity_rows())
    model, batch = model_for(made), made.batches(seed=0).batch(0)
    torch.testing.assert_close(made.task.loss(model, batch, Objective(rdrop=3.0)), made.task.loss(model, batch))
    for name in ("rdrop", "label_smoothing"):
        with pytest.raises(ConfigError, match=rf"train\.{name}"):
            prepared(entity_rows(), crf=True, train={name: 0.1})


@pytest.mark.slow
@pytest.mark.parametrize("crf", [False, True])
def test_the_last_letter_of_words_is_learned(crf: bool):
    letters = "abxyz"
    generator = torch.Generator().manual_seed(5)
    rows = []
    for _ in range(300):
        numbers = torch.randint(0, 5, (4, 3), generator=generator).tolist()
        words = ["".join(letters[number] for number in word) for word in numbers]
        rows.append((words, ["V" if word[-1] in "ab" else "C" for word in words]))
    made = prepared(rows, crf=crf, model={"num_layers": 2})
    model = made.build().float().train()
    batches = made.batches(batch_tokens=1000, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(100):
        batch = batches.batch(step)
        optimizer.zero_grad()
        (made.task.loss(model, batch) / batch.num_targets).backward()
        optimizer.step()
    held_out = made.data.held_out["valid"]
    predictions = made.predict(model.eval(), [made.task.input_of(row) for row in held_out])
    assert made.scores(held_out, [each.output for each in predictions])["accuracy"] > 0.9
