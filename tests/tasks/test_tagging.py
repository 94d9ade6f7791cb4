"""Tagging: rows, words and their tokens, losses, answers."""

import json
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import models, normalizers, pre_tokenizers, trainers

from regard.data.config import DataConfig
from regard.data.preparation import Prepared
from regard.data.tagged import encode_sentences, open_sentences, tells_words_apart, words_of
from regard.errors import BadRowsError, ConfigError, DataError
from regard.models.heads import HeadConfig
from regard.models.transformer import TransformerConfig
from regard.tasks.objective import Objective
from regard.tasks.tagging import Tagging, has_entities, make_batch
from regard.tasks.task import Prediction
from regard.text.tokenizer import Tokenizer, train_tokenizer
from regard.training.resolution import with_learned

SHAPE = TransformerConfig.read(
    {"num_layers": 1, "decoder_layers": 0, "model_dim": 22, "num_heads": 2, "feedforward_dim": 37, "dropout": 0.0}
)
CPU = torch.device("cpu")
TASK = Tagging()
NAMES = ["Ada", "Bob", "Kurt Godel", "Emmy van Noether"]
SENTENCES = ["{} sang", "we saw {} and {} there", "it rained", "{} {}", "who is {} , then ?"]


def entity_rows(count: int = 120, first: str = "B") -> list[Any]:
    """Sentences with names in them; those of one word are people, the others houses."""
    rows = []
    for number in range(count):
        words, tags, holes = [], [], 0
        for part in SENTENCES[number % len(SENTENCES)].split():
            if part != "{}":
                words, tags = [*words, part], [*tags, "O"]
                continue
            name = NAMES[(number // 5 + holes) % len(NAMES)].split()
            kind = "PER" if len(name) == 1 else "HOUSE"
            words, holes = [*words, *name], holes + 1
            tags += [f"{first}-{kind}", *(f"I-{kind}" for _ in name[1:])]
        rows.append(([*words, f"n{number}"], [*tags, "O"]))
    return rows


PLAIN_ROWS = [(f"{'a' * (n % 5 + 1)} run {n} ends quickly", f"{'X' if n % 2 else 'D'} V N V A") for n in range(90)]


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


def prepared(rows, **options) -> tuple[Prepared, DataConfig]:
    config = DataConfig.read({"tokenizer": "characters", **options})
    data = TASK.prepare(config, rows)
    return data, with_learned(config, data)


def model_for(data: Prepared, config: DataConfig, **head):
    model = TASK.build_model(SHAPE, data.tokenizer, data=config, head=HeadConfig(dropout=0.0, **head))
    if model.crf is not None:
        for parameter in model.crf.parameters():
            torch.nn.init.normal_(parameter)
    return model


def answers(model, data: Prepared, config: DataConfig, inputs):
    return TASK.writer(model.eval(), data.tokenizer, None, config)(inputs)  # pyright: ignore[reportArgumentType]  it is not used


def wordpiece() -> Tokenizer:
    inner = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer()
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(vocab_size=60, special_tokens=names, show_progress=False)
    inner.train_from_iterator([" ".join(words) for words, _ in entity_rows()], trainer)
    return Tokenizer(inner)


def tokenizer_of(kind) -> Tokenizer:
    texts = [" ".join(words) for words, _ in entity_rows()]
    size = {"bpe": 300, "unigram": 60}.get(kind, 400)
    return wordpiece() if kind == "wordpiece" else train_tokenizer(texts, kind, size)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "characters", "bytes", "words", "wordpiece"])
def test_words_one_by_one_are_the_tokens_of_the_whole_sentence(kind):
    tokenizer = tokenizer_of(kind)
    sentences = [words for words, _ in entity_rows(40)]
    tokens, places, _ = encode_sentences(sentences, tokenizer, 512)
    for words, ids, firsts in zip(sentences, tokens, places, strict=True):
        assert ids == [tokenizer.start, *tokenizer.encode([" ".join(words)])[0], tokenizer.end]
        assert len(firsts) == len(words)
        assert firsts == sorted(set(firsts))
        for word, start in zip(words, firsts, strict=True):
            piece = tokenizer.pieces([ids[start]])[0].strip().removeprefix("▁")
            assert word.lower().startswith(piece.lower()) or kind in ("words", "wordpiece")
            assert piece
    assert tells_words_apart(tokenizer) == (kind in ("bpe", "characters", "bytes"))


def test_a_sentence_is_cut_at_a_word_and_a_word_without_tokens_has_the_place_before():
    tokenizer = tokenizer_of("characters")
    tokens, places, _ = encode_sentences([["Ada", "sang", "it"], ["Noether" * 3, "sang"]], tokenizer, 11)
    assert [len(ids) for ids in tokens] == [10, 11]
    assert places == [[1, 5], [1]]
    odd = wordpiece()
    (ids,), (firsts,), _ = encode_sentences([["\u200b", "Ada", "\u200b"]], odd, 50)
    assert (firsts[0], firsts[1], firsts[2]) == (0, 1, len(ids) - 2)


@pytest.mark.parametrize("crf", [False, True])
@pytest.mark.parametrize("rows", [entity_rows(), PLAIN_ROWS])
def test_the_loss_is_that_of_a_plain_loop(rows, crf: bool):
    data, config = prepared(rows)
    model = model_for(data, config, crf=crf)
    batch = TASK.batches(data, config, batch_tokens=300, seed=0).batch(0)
    expected = torch.zeros(())
    for row in range(batch.source.size(0)):
        length = batch.source.size(1) if batch.lengths is None else int(batch.lengths[row])
        count = int(batch.num_words[row])
        states = model.body.encode(batch.source[row : row + 1, :length]).states[0]
        scores = model.head(torch.stack([states[int(place)] for place in batch.places[row, :count]]))
        tags = batch.tags[row, :count].tolist()
        if model.crf is not None:
            expected = expected - model.crf.log_likelihood(scores[None], torch.tensor([tags]))[0]
        else:
            for score, tag in zip(scores, tags, strict=True):
                expected = expected - score.log_softmax(dim=0)[tag]
    assert batch.num_targets == int(batch.num_words.sum())
    torch.testing.assert_close(TASK.loss(model, batch), expected)


@pytest.mark.parametrize("crf", [False, True])
def test_batches_filled_to_a_shape_cost_what_they_did(crf: bool):
    data, config = prepared(entity_rows())
    model = model_for(data, config, crf=crf)
    plain = TASK.batches(data, config, batch_tokens=400, seed=3)
    shaped = TASK.batches(data, config, batch_tokens=400, seed=3, has_few_shapes=True)
    assert plain.per_epoch > 2
    shapes = set()
    for number in range(plain.per_epoch):
        one, other = plain.batch(number), shaped.batch(number)
        shapes.add(other.source.shape)
        assert one.num_targets == other.num_targets
        assert other.places.shape == other.source.shape
        torch.testing.assert_close(TASK.loss(model, one), TASK.loss(model, other))
    assert len(shapes) <= len(plain.sampler.buckets)


def test_a_tagger_that_is_told_tells_words_apart_by_their_capitals():
    data, config = prepared(entity_rows(), tokenizer="characters", lowercase=True)
    model = model_for(data, config, capitals=True)
    assert model.forms is not None
    before = answers(model, data, config, ["ada sang", "Ada sang"])
    assert before[0].output == before[1].output, "a base that was never told goes on from where it was"
    batches = [next(TASK.rows_as_batches([(text, "O O")], data.tokenizer, config)) for text in ("ada sang", "ADA sang")]
    torch.testing.assert_close(batches[0].source, batches[1].source)
    torch.nn.init.normal_(model.forms.weight)
    assert abs(float((TASK.loss(model, batches[0]) - TASK.loss(model, batches[1])).detach())) > 1e-6


def test_each_token_has_the_form_of_its_word():
    tokenizer = tokenizer_of("characters")
    (tokens,), _, (forms,) = encode_sentences([["Ada", "UN", "is"]], tokenizer, 9)
    assert len(forms) == len(tokens)
    assert forms == [0, 3, 3, 3, 4, 4, 4, 0]


def test_what_stands_in_padding_changes_nothing():
    data, config = prepared(entity_rows())
    model = model_for(data, config, crf=True)
    batch = make_batch([torch.arange(5, 9).numpy(), torch.arange(4, 11).numpy()],
                       [torch.tensor([1]).numpy(), torch.tensor([1, 3]).numpy()],
                       [torch.tensor([1]).numpy(), torch.tensor([2, 0]).numpy()],
                       [torch.tensor([0, 3, 1, 0]).numpy(), torch.tensor([0, 1, 1, 2, 3, 3, 0]).numpy()],
                       0)  # fmt: skip
    source, lengths, places, words, tags, weights, forms = batch.tensors()
    assert source is not None
    assert places is not None
    assert tags is not None
    other = source.clone(), places.clone(), tags.clone()
    other[0][0, 4:], other[1][0, 1:], other[2][0, 1:] = 3, 5, 1
    changed = batch.with_tensors([other[0], lengths, other[1], words, other[2], weights, forms])
    torch.testing.assert_close(TASK.loss(model, changed), TASK.loss(model, batch))


@pytest.mark.parametrize("rows", [entity_rows(), PLAIN_ROWS])
def test_rows_as_text_and_rows_of_the_store_are_the_same(rows):
    data, config = prepared(rows, max_length=31)
    model = model_for(data, config)
    stored = TASK.negative_log_likelihoods(model, TASK.held_out(data, config), CPU)
    batches = TASK.rows_as_batches(data.held_out["valid"], data.tokenizer, config)
    given = TASK.negative_log_likelihoods(model, batches, CPU)
    assert sorted(given.losses) == pytest.approx(sorted(stored.losses))
    assert sorted(given.counts) == sorted(stored.counts)
    assert len(given.losses) == len(data.held_out["valid"])


def test_tags_of_any_scheme_are_learned_in_one():
    data, config = prepared(entity_rows())
    other, other_config = prepared(entity_rows(first="I"))
    assert config.labels[0] == "O"
    assert sorted(config.labels) == ["B-HOUSE", "B-PER", "I-HOUSE", "I-PER", "O"]
    assert sorted(other_config.labels) == sorted(config.labels)
    assert data.learned.labels["I-PER"] == 0
    assert any("written in IO" in note for note in other.notes)
    assert has_entities(config.labels)


def test_faults_are_told_and_read_as_beginnings():
    rows = entity_rows()
    rows[7] = (["the", "Ada", "x"], ["O", "I-PER", "O"])
    data, config = prepared(rows)
    assert any("1 sentence has tags that cannot be in BIO" in note for note in data.notes)
    batches = list(TASK.rows_as_batches([("the Ada x", "O I-PER O")], data.tokenizer, config))
    assert [config.labels[tag] for tag in batches[0].tags[0].tolist()] == ["O", "B-PER", "O"]


@pytest.mark.parametrize("crf", [False, True])
def test_there_is_a_tag_for_each_word_and_with_a_random_field_they_can_be(crf: bool):
    data, config = prepared(entity_rows(), max_length=19)
    model = model_for(data, config, crf=crf)
    inputs = ["Ada sang", "", "we saw Ada and Bob and nobody else at all", " Bob  sang "]
    found = answers(model, data, config, inputs)
    assert [each.input for each in found] == inputs
    assert [len(words_of(each.output)) for each in found] == [2, 0, 10, 2]
    assert words_of(found[2].output)[-4:] == ["O"] * 4
    if crf:
        for each in found:
            steps = zip(["O", *words_of(each.output)], words_of(each.output), strict=False)
            assert all(tag[0] != "I" or before[1:] == tag[1:] for before, tag in steps)


def test_scores_of_entities_and_of_plain_tags():
    data, config = prepared(entity_rows())
    rows = data.held_out["valid"]
    right = [Prediction(row[0], row[1]) for row in rows]
    scores = {score.name: score.value for score in TASK.scores(rows, right, None, config)}  # pyright: ignore[reportArgumentType]  it is not used
    assert scores[TASK.headline(rows)] == scores["entity_f1"] == 1.0
    plain, plain_config = prepared(PLAIN_ROWS)
    rows = [("a run", "D V"), ("aa run off", "X V A")]
    said = [Prediction("a run", "D V"), Prediction("aa run off", "D V A")]
    found = {score.name: score.value for score in TASK.scores(rows, said, None, plain_config)}  # pyright: ignore[reportArgumentType]  it is not used
    assert plain.learned.labels == {tag: plain.learned.labels[tag] for tag in plain_config.labels}
    assert found["accuracy"] == pytest.approx(4 / 5)
    assert found["macro_f1"] == pytest.approx((2 / 3 + 0 + 1 + 1) / 4)
    assert TASK.headline(rows) == "accuracy"


@pytest.mark.slow
@pytest.mark.parametrize("crf", [False, True])
def test_words_that_end_in_a_letter_are_learned(crf: bool):
    letters = "abxyz"
    generator = torch.Generator().manual_seed(5)
    rows = []
    for _ in range(300):
        numbers = torch.randint(0, 5, (4, 3), generator=generator).tolist()
        words = ["".join(letters[number] for number in word) for word in numbers]
        rows.append((words, ["V" if word[-1] in "ab" else "C" for word in words]))
    data, config = prepared(rows)
    shape = SHAPE.changed(num_layers=2)
    model = TASK.build_model(shape, data.tokenizer, data=config, head=HeadConfig(dropout=0.0, crf=crf)).float()
    batches = TASK.batches(data, config, batch_tokens=1000, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(150):
        batch = batches.batch(step)
        optimizer.zero_grad()
        (TASK.loss(model, batch) / batch.num_targets).backward()
        optimizer.step()
    held_out = data.held_out["valid"]
    said = answers(model, data, config, [TASK.question(row) for row in held_out])
    scores = {score.name: score.value for score in TASK.scores(held_out, said, None, config)}  # pyright: ignore[reportArgumentType]  it is not used
    assert scores["accuracy"] > 0.9


def test_agreement_of_two_readings_costs_nothing_where_they_agree():
    data, config = prepared(entity_rows())
    model = model_for(data, config)
    batch = TASK.batches(data, config, batch_tokens=400, seed=0).batch(0)
    torch.testing.assert_close(TASK.loss(model, batch, Objective(consistency=3.0)), TASK.loss(model, batch))
    with pytest.raises(ConfigError, match="a random field has no label_smoothing or consistency"):
        TASK.loss(model_for(data, config, crf=True), batch, Objective(label_smoothing=0.1))


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([*PLAIN_ROWS, ("a b", "X")], BadRowsError, "has 2 words and 1 tag: row 91"),
        ([*PLAIN_ROWS, (["a", "b"], ["X", "Y", "Z"])], BadRowsError, "has 2 words and 3 tags: row 91"),
        ([*PLAIN_ROWS, (["a"], ["X Y"])], BadRowsError, "has a tag with a space in it: row 91"),
        ([(f"a {n}", "X X") for n in range(60)], DataError, "all 120 words have the tag 'X'"),
    ],
)
def test_rows_that_cannot_be_are_refused(rows, error, message):
    with pytest.raises(error, match=message):
        prepared(rows)


def test_a_tag_that_the_model_does_not_know_is_named():
    data, config = prepared(PLAIN_ROWS)
    with pytest.raises(DataError, match="the tag 'Q' does not occur among the training rows, which have V, A, N, D, X"):
        list(TASK.rows_as_batches([("a", "Q")], data.tokenizer, config))


def test_files_lists_and_joined_texts_give_the_same_rows(tmp_path):
    rows = entity_rows(30)
    columns = "\n\n".join("\n".join(f"{w} {t}" for w, t in zip(*row, strict=True)) for row in rows) + "\n"
    (tmp_path / "a.conll").write_text(columns)
    lines = (json.dumps({"tokens": words, "tags": tags}) for words, tags in rows)
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    expected = [(" ".join(words), " ".join(tags)) for words, tags in rows]
    for name in ("a.conll", "a.jsonl"):
        assert TASK.read(DataConfig(train=[str(tmp_path / name)]))[0] == expected
    assert TASK.read(DataConfig(), rows)[0] == TASK.read(DataConfig(), expected)[0] == expected
    assert TASK.read(DataConfig(), rows)[1] == TASK.read(DataConfig(), expected)[1]
    config = DataConfig(train=[str(tmp_path / "a.conll")], columns=["2", "1"])
    assert TASK.read(config)[0] == [(tags, words) for words, tags in expected]


def test_a_folder_has_its_splits_and_a_space_inside_a_word_is_kept_together(tmp_path):
    for split in ("train", "dev", "test"):
        (tmp_path / f"en-{split}.conllu").write_text(
            f"1\t10 000\t_\tNUM{6 * chr(9)}_\n2\t{split}\t_\tNOUN{6 * chr(9)}_\n\n"
        )
    source = open_sentences(DataConfig(train=[str(tmp_path)]))
    assert [row.values for row in source.train] == [("10\u00a0000 train", "NUM NOUN")]
    assert source.valid is not None
    assert [row.values for row in source.valid] == [("10\u00a0000 dev", "NUM NOUN")]
    assert source.content_hash().count("+") == 2
