"""Labels of texts and of words as transformers' users learn them: its model classes, the settings of its examples."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BATCH, EPOCHS = 32, 3


def labels_by_transformers(
    folder: Path, train: Sequence[tuple[str, str]], texts: Sequence[str], seed: int, device: str, rate: float
) -> list[str]:
    """Train on texts with labels, and label other texts."""
    import torch
    from transformers import AutoTokenizer, BertForSequenceClassification, set_seed

    set_seed(seed)
    names = sorted({label for _, label in train})
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = BertForSequenceClassification.from_pretrained(folder, num_labels=len(names), dtype=torch.float32)

    all_texts = list(dict.fromkeys([*(text for text, _ in train), *texts]))
    cut = dict(zip(all_texts, tokenizer(all_texts, truncation=True)["input_ids"], strict=True))

    def tensors(batch: Sequence[tuple[str, str | None]]) -> dict[str, Any]:
        found = tokenizer.pad({"input_ids": [cut[text] for text, _ in batch]}, return_tensors="pt")
        labels = [names.index(label) for _, label in batch if label is not None]
        return {**found, **({"labels": torch.tensor(labels)} if labels else {})}

    _learn(model, [[text, label] for text, label in train], tensors, seed, device, rate)
    answers: list[str] = []
    for first in range(0, len(texts), 128):
        batch = tensors([(text, None) for text in texts[first : first + 128]])
        with torch.no_grad():
            scores = model(**{name: tensor.to(device) for name, tensor in batch.items()}).logits
        answers += [names[number] for number in scores.argmax(-1).tolist()]
    return answers


Sentence = tuple[list[str], list[str]]


def tags_by_transformers(
    folder: Path, train: Sequence[Sentence], test: Sequence[list[str]], seed: int, device: str, rate: float
) -> list[list[str]]:
    """Train on words with tags, the first piece of a word standing for it, and tag other words."""
    import torch
    from transformers import AutoTokenizer, BertForTokenClassification, set_seed

    set_seed(seed)
    names = sorted({tag for _, tags in train for tag in tags})
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = BertForTokenClassification.from_pretrained(folder, num_labels=len(names), dtype=torch.float32)

    def tensors(batch: Sequence[Sentence]) -> dict[str, Any]:
        found = tokenizer(
            [words for words, _ in batch], is_split_into_words=True, truncation=True, padding=True, return_tensors="pt"
        )
        labels = torch.full_like(found["input_ids"], -100)
        for row, (_, tags) in enumerate(batch):
            for place, word in firsts(found.word_ids(row)):
                labels[row, place] = names.index(tags[word]) if tags else 0
        return {**found, "labels": labels}

    def firsts(words: list[int | None]) -> list[tuple[int, int]]:
        places = [(place, word) for place, word in enumerate(words) if word is not None]
        return [(place, word) for place, word in places if place == 0 or words[place - 1] != word]

    _learn(model, list(train), tensors, seed, device, rate)
    answers: list[list[str]] = []
    for first in range(0, len(test), 64):
        batch = tensors([(words, []) for words in test[first : first + 64]])
        labels = batch.pop("labels")
        with torch.no_grad():
            scores = model(**{name: tensor.to(device) for name, tensor in batch.items()}).logits
        for row, numbers in enumerate(scores.argmax(-1).tolist()):
            kept = [number for number, label in zip(numbers, labels[row].tolist(), strict=True) if label >= 0]
            tags = [names[number] for number in kept]
            answers.append(tags + ["O"] * (len(test[first + row]) - len(tags)))
    return answers


def _learn(model: Any, rows: list[Any], tensors: Any, seed: int, device: str, rate: float) -> None:
    import torch
    from transformers import get_linear_schedule_with_warmup

    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    per_epoch = len(rows) // BATCH
    schedule = get_linear_schedule_with_warmup(optimizer, int(0.06 * EPOCHS * per_epoch), EPOCHS * per_epoch)
    order = random.Random(seed)
    for _ in range(EPOCHS):
        order.shuffle(rows)
        for first in range(0, per_epoch * BATCH, BATCH):
            batch = {name: tensor.to(device) for name, tensor in tensors(rows[first : first + BATCH]).items()}
            with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
                loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()
