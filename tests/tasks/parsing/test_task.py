"""Parsing from end to end: trees over exactly the words of the input, likelihoods, and bad input."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from fastapi.testclient import TestClient
from tests.contracts.test_tasks import rows_of_trees
from tests.nn.test_chart import binary_trees
from tests.tiny import tiny

import regard
from regard.baselines.trees import fit_span_counts
from regard.cli.main import main
from regard.data.codecs.trees import LabeledSpan, TreeCodec
from regard.data.formats.trees import parse_tree
from regard.evaluation.metrics.brackets import count_brackets
from regard.evaluation.metrics.classes import f1
from regard.explanation.pages import page_data
from regard.nn.chart import IMPOSSIBLE
from regard.serving.app import make_app
from regard.tasks.parsing.drawing import draw_as_svg, draw_as_text
from regard.tasks.parsing.model import as_chart, tree_log_likelihood
from regard.tasks.parsing.task import span_labels

SENTENCES = ["go", "the cat sees ( a sea ) .", "Ada " * 29, "x"]
SMALL = {"tokenizer": "words", "span_dim": 7}


@pytest.fixture(scope="module", params=[{}, {"decoder": "lstm-attention-tiny"}], ids=["chart", "linear"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(tmp_path_factory.mktemp("cache")))
        data = {"data": {"splits": [0.7, 0.2, 0.1]}}
        return tiny("parsing", rows_of_trees(60), preset="transformer-tiny", **data, **SMALL, **request.param)


def test_every_output_of_an_untrained_model_is_a_tree_of_the_words(made: Any):
    model = made.build(std=0.5)
    for sentence, found in zip(SENTENCES, made.predict(model, SENTENCES), strict=True):
        assert parse_tree(found.output).words() == sentence.split()


def test_words_beyond_the_limit_are_children_of_the_root(made: Any):
    task = type(made.task)(made.task.settings.changed(max_length=9), made.task.codecs)
    model = made.build(std=0.5)
    text = " ".join(["the", "cat"] * 400)
    (found,) = task.predictor(model, made.settings.generate)([text])
    tree = parse_tree(found.output)
    assert tree.words() == text.split()
    while len(tree.children) == 1:  # a chain of labels over all words
        (tree,) = tree.children
    assert sum(child.word is not None for child in tree.children) >= 790


def test_the_likelihood_is_that_of_all_binary_forms_of_a_tree():
    """By enumeration: all binary trees with all labels, of which some are forms of the tree."""
    size, num_labels = 4, 3
    first, last = torch.triu_indices(size, size)
    scores = torch.randn(1, len(first), num_labels)
    spans = [LabeledSpan(0, 4, 1), LabeledSpan(1, 3, 2)]
    index = {(int(i), int(j)): k for k, (i, j) in enumerate(zip(first, last, strict=True))}
    gold = {(span.start, span.end - 1): span.label for span in spans}
    total, matching = [], []
    for tree in binary_trees(0, size - 1):
        total.append(sum(scores[0, index[span]].logsumexp(0) for span in tree))
        if gold.keys() <= set(tree):
            matching.append(sum(scores[0, index[span], gold.get(span, 0)] for span in tree))
    assert len(matching) == 2
    expected = torch.stack(matching).logsumexp(0) - torch.stack(total).logsumexp(0)  # pyright: ignore
    labels = torch.from_numpy(span_labels(spans, size))[None]
    torch.testing.assert_close(tree_log_likelihood(scores, labels, torch.tensor([size]))[0], expected)


def test_a_chart_has_the_values_of_its_spans():
    chart = as_chart(torch.arange(1.0, 7.0)[None], 3)
    assert chart[0].tolist() == [[1, 2, 3], [0, 4, 5], [0, 0, 6]]
    assert IMPOSSIBLE < -1e5


def test_labels_that_training_lacks_are_those_of_their_chain():
    codec = TreeCodec.fit([parse_tree("(S (NP (NN a)) (NP (NN b)))")])
    known = codec.encode_tree(parse_tree("(S (NP (X (NN a))) (Y (NN b) (NN c)))"))
    labels = ["", *codec.labels]
    assert [labels[span.label] for span in known.spans] == ["S", "NP", "NP"]


def test_the_baseline_returns_trees_of_the_words_and_learns_short_ones():
    trees = rows_of_trees(60)
    baseline = fit_span_counts([parse_tree(tree) for tree in trees])
    inputs = [" ".join(parse_tree(tree).words()) for tree in trees]
    outputs = baseline.predict([*inputs, "never seen words of any kind"]).outputs
    assert parse_tree(outputs[-1]).words() == ["never", "seen", "words", "of", "any", "kind"]
    assert count_brackets(outputs[:-1], trees).micro(f1).value > 0.8


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("parser")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        settings = {"task": {"span_dim": 7}, "model": {"num_layers": 1, "model_dim": 12}}
        rows = [(tree,) for tree in rows_of_trees(60)]
        return regard.train(rows, steps=2, device="cpu", out=folder / "run", settings=settings)


def command(*arguments: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["regard", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0)


def test_the_report_draws_predicted_and_true_trees(run: Any):
    (section,) = page_data(run.path / "report.html")["sections"]
    assert section["title"] == "Trees"
    assert [each["caption"] for each in section["drawings"][:3]] == ["1. predicted", "1. true", "2. predicted"]
    for each in section["drawings"]:
        assert ElementTree.fromstring(each["svg"]).tag.endswith("svg")


def test_a_command_draws_a_tree_as_text_and_to_a_file(run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "tree.svg"
    assert command("predict", str(run.path), "the cat sees", "--tree", "--plot", str(path)) == 0
    tree = run.predict("the cat sees")
    assert capsys.readouterr().out == draw_as_text(tree) + "\n"
    assert path.read_text(encoding="utf-8") == draw_as_svg(tree)


def test_a_certificate_is_of_exact_trees(run: Any):
    found = run.certificate().to_json()
    assert found["validation"]["metric"] == "exact_trees"


def test_a_server_draws_trees_where_that_is_asked_for(run: Any):
    client = TestClient(make_app(run))
    (plain,) = client.post("/predict", json={"inputs": ["the cat sees"]}).json()["predictions"]
    (drawn,) = client.post("/predict", json={"inputs": ["the cat sees"], "draw": True}).json()["predictions"]
    assert client.get("/model").json()["output"] == "tree"
    assert drawn == {**plain, "svg": draw_as_svg(plain["output"])}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["the cat", "--plot", "tree.png"], "must end in .svg"),
        (["the cat", "--plot", "missing/tree.svg"], "there is no folder missing"),
        (["--plot", "tree.svg"], "none is given"),
        (["--file", "sentences.csv", "--tree"], "--file cannot be combined with --tree"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(
    run: Any, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):  # fmt: skip
    assert command("predict", str(run.path), *arguments) != 0
    printed = capsys.readouterr().err.strip().splitlines()
    assert message in printed[-1]


def test_a_tree_is_drawn():
    tree = "(S (NP (DT the) (NN <sea>)) (VP (VBZ calls)))"
    assert "├─ NP" in draw_as_text(tree)
    svg = draw_as_svg(tree)
    assert "&lt;sea&gt;" in svg
    assert svg.count("<line") == 5
