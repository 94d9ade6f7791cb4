"""Sequence to sequence: batches, padding, and the predictions of greedy generation and beam search."""

import pytest
import torch
from tests.tiny import tiny

from regard.generation.config import GenerationConfig
from regard.nn.losses import IGNORED
from regard.tasks.task import Objective

ROWS = [(f"{'abcdefgh'[number % 5 :]}{number % 7}", f"{number % 7}{'hgfedcba'[: number % 6]}") for number in range(70)]


def test_sources_end_and_targets_are_shifted_by_one():
    made = tiny("seq2seq", ROWS, tokenizer="characters")
    (batch,) = made.task.row_batches([("abc", "0h"), ("d", "1")])
    tokenizer = made.task.tokenizer
    end, start, padding = tokenizer.end, tokenizer.start, tokenizer.pad
    a, b, c, d, zero, one, h = (tokenizer.encode([letter])[0][0] for letter in "abcd01h")
    assert batch.source.tolist() == [[d, end, padding, padding], [a, b, c, end]]
    assert batch.lengths.tolist() == [2, 4]
    assert batch.target_in.tolist() == [[start, one, padding], [start, zero, h]]
    assert batch.target_out.tolist() == [[one, end, IGNORED], [zero, h, end]]
    assert (batch.num_targets, batch.num_tokens) == (5, 11)


def test_each_of_two_tokenizers_is_fitted_on_its_own_side():
    rows = [(source.upper(), " ".join(target)) for source, target in ROWS]
    made = tiny("seq2seq", rows, tokenizer="characters", target_tokenizer="words")
    sources, targets = ([row[side] for row in rows] for side in (0, 1))
    reader, writer = made.task.tokenizer, made.task.target_tokenizer
    assert reader.count_unknown(reader.encode(sources)) == writer.count_unknown(writer.encode(targets)) == 0
    assert reader.count_unknown(reader.encode(["abc"])) == writer.count_unknown(writer.encode(["A B C"])) == 3


def test_characters_beside_pieces_of_words_are_not_limited_by_the_number_of_pieces():
    rows = [(chr(0x4E00 + number), f"syllable {number % 7} of many") for number in range(400)]
    made = tiny("seq2seq", rows, tokenizer="characters", target_tokenizer="bpe", vocab_size=280)
    reader, writer = made.task.tokenizer, made.task.target_tokenizer
    assert reader.count_unknown(reader.encode([row[0] for row in made.data.train_rows()])) == 0
    assert writer.vocab_size <= 280 < reader.vocab_size


def test_a_padded_batch_has_the_same_gradients():
    made = tiny("seq2seq", ROWS, tokenizer="characters")
    (batch,) = made.task.row_batches([("abc", "0h"), ("d", "1")])
    padded = made.task.pad_batch(batch, 5, 7)
    shapes = [tuple(tensor.shape) for tensor in padded.tensors() if tensor is not None]
    assert shapes == [(5, 8), (5,), (5, 8), (5, 8)]
    assert int((padded.target_out != IGNORED).sum()) == batch.num_targets
    model, found = made.build(std=0.3), []
    for each in (batch, padded):
        loss = made.task.loss(model, each, Objective(label_smoothing=0.1))
        found.append((loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))))
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("beam_size", [1, 3])
def test_predictions_are_in_the_order_of_the_inputs_whatever_the_batches(beam_size: int, monkeypatch):
    made = tiny("seq2seq", ROWS, tokenizer="characters")
    model = made.build(std=0.5)
    monkeypatch.setattr("regard.tasks.seq2seq._SEARCHED_TOKENS", {"cpu": 60})  # several batches
    inputs = ["abc", "d", "efghabcd", "ab", "hgfedcba", "c", "fe"]
    predict = made.task.predictor(model, GenerationConfig(beam_size=beam_size, max_tokens=6))
    together = predict(inputs)
    assert [prediction.input for prediction in together] == inputs
    for text, prediction in zip(inputs, together, strict=True):
        (alone,) = predict([text])
        assert alone.output == prediction.output
        assert alone.score == (None if beam_size == 1 else pytest.approx(prediction.score))


def test_special_tokens_are_not_generated():
    """Not even the unknown token, and not even where they have the highest logits and the end has the lowest."""
    made = tiny("seq2seq", ROWS, tokenizer="characters")
    model, tokenizer = made.build(std=0.5), made.task.tokenizer
    assert tokenizer.pieces(tokenizer.never_generated) == ["<pad>", "<s>", "<unk>"]
    model.output.bias = torch.nn.Parameter(torch.zeros(tokenizer.vocab_size))
    with torch.no_grad():
        model.output.bias[list(tokenizer.never_generated)] = 100.0
        model.output.bias[tokenizer.end] = -100.0
    for beam_size in (1, 3):
        predict = made.task.predictor(model, GenerationConfig(beam_size=beam_size, max_tokens=6))
        assert [len(each.output) for each in predict(["abc", "d"])] == [6, 6]
        assert not any("<" in each.output for each in predict(["abc", "d"]))


def test_the_headline_is_bleu_for_targets_of_several_words():
    made = tiny("seq2seq", ROWS, tokenizer="characters")
    assert made.task.headline([("a", "one two three four")]) == "bleu"
    assert made.task.headline([("a", "one")]) == "exact_match"
