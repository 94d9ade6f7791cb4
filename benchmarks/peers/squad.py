"""Question answering as transformers' users do it: its model class, its tokenizer, the settings of its example."""

from pathlib import Path
from typing import Any

LONGEST, OVERLAP, BATCH, EPOCHS, RATE = 384, 128, 12, 3, 5e-5
NUM_BEST, LONGEST_ANSWER = 20, 30


def answers_of_transformers(
    folder: Path, train: list[Any], test: list[Any], seed: int, device: str
) -> tuple[list[str], list[list[str]]]:
    """Train on articles, and answer the questions of others; the answers, and what is right."""
    import torch
    from transformers import AutoTokenizer, BertForQuestionAnswering, get_linear_schedule_with_warmup, set_seed

    set_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = BertForQuestionAnswering.from_pretrained(folder, dtype=torch.float32).to(device)
    windows = _windows(tokenizer, _questions(train), with_answers=True)
    steps = EPOCHS * (len(windows) // BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = get_linear_schedule_with_warmup(optimizer, 0, steps)
    model.train()
    for _ in range(EPOCHS):
        order = torch.randperm(len(windows)).tolist()
        for first in range(0, len(windows) - BATCH + 1, BATCH):
            batch = [windows[index] for index in order[first : first + BATCH]]
            with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
                loss = model(**_tensors(batch, device)).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()
    questions = _questions(test)
    best: list[tuple[float, str]] = [(float("-inf"), "")] * len(questions)
    tested = _windows(tokenizer, questions, with_answers=False)
    for first in range(0, len(tested), 64):
        batch = tested[first : first + 64]
        with torch.no_grad():
            scored = model(**_tensors(batch, device))
        for window, starts, ends in zip(batch, scored.start_logits.cpu(), scored.end_logits.cpu(), strict=True):
            found = _best_span(window, starts, ends)
            if found is not None and found[0] > best[window["question"]][0]:
                text = questions[window["question"]]["context"][found[1] : found[2]]
                best[window["question"]] = (found[0], text)
    return [text for _, text in best], [question["answers"] for question in questions]


def _questions(articles: list[Any]) -> list[dict[str, Any]]:
    return [
        {
            "question": asked["question"].strip(),
            "context": paragraph["context"],
            "answers": [answer["text"] for answer in asked["answers"]],
            "start": asked["answers"][0]["answer_start"],
        }
        for article in articles
        for paragraph in article["paragraphs"]
        for asked in paragraph["qas"]
    ]


def _windows(tokenizer: Any, questions: list[dict[str, Any]], *, with_answers: bool) -> list[dict[str, Any]]:
    encoded = tokenizer(
        [each["question"] for each in questions],
        [each["context"] for each in questions],
        truncation="only_second",
        max_length=LONGEST,
        stride=OVERLAP,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        padding="max_length",
    )
    windows = []
    for index, number in enumerate(encoded["overflow_to_sample_mapping"]):
        parts, places = encoded.sequence_ids(index), encoded["offset_mapping"][index]
        window = {
            "question": number,
            "places": [place if part == 1 else None for place, part in zip(places, parts, strict=True)],
            "inputs": {name: encoded[name][index] for name in ("input_ids", "attention_mask", "token_type_ids")},
        }
        if with_answers:
            start = questions[number]["start"]
            end = start + len(questions[number]["answers"][0])
            window["span"] = _span(window["places"], start, end)
        windows.append(window)
    return windows


def _span(places: list[Any], start: int, end: int) -> tuple[int, int]:
    """The tokens of the answer, or twice the first one where the window has it not."""
    inside = [index for index, place in enumerate(places) if place is not None]
    if places[inside[0]][0] > start or places[inside[-1]][1] < end:
        return 0, 0
    first = max(index for index in inside if places[index][0] <= start)
    last = min(index for index in inside if places[index][1] >= end)
    return first, last


def _tensors(batch: list[dict[str, Any]], device: str) -> dict[str, Any]:
    import torch

    found = {name: torch.tensor([each["inputs"][name] for each in batch], device=device) for name in batch[0]["inputs"]}
    if "span" in batch[0]:
        found["start_positions"] = torch.tensor([each["span"][0] for each in batch], device=device)
        found["end_positions"] = torch.tensor([each["span"][1] for each in batch], device=device)
    return found


def _best_span(window: dict[str, Any], starts: Any, ends: Any) -> tuple[float, int, int] | None:
    places = window["places"]
    best = None
    for start in starts.topk(NUM_BEST).indices.tolist():
        for end in ends.topk(NUM_BEST).indices.tolist():
            if places[start] is None or places[end] is None or not start <= end < start + LONGEST_ANSWER:
                continue
            score = float(starts[start] + ends[end])
            if best is None or score > best[0]:
                best = (score, places[start][0], places[end][1])
    return best
