"""Trees in brackets: what is read, what is left out, and what is wrong with a file, by its line."""

from pathlib import Path

import pytest

from regard.data.formats.trees import (
    Constituent,
    Tree,
    build_tree,
    clean_tree,
    constituents_of,
    is_tree_file,
    parse_tree,
    tree_table,
)
from regard.errors import DataError

NESTED = """# file wsj_0001.mrg

( (S
    (NP-SBJ-1 (NNP Ada) )
    (VP (VBD sang)
      (S-PRP
        (NP-SBJ (-NONE- *-1) )
        (VP (TO to)
          (VP (VB rest) ))))
    (. .) ))
( (NP (-LRB- -LRB-) (NN 1\\/2) (-RRB- -RRB-)) )
"""
CLEAN = "(S (NP (NNP Ada)) (VP (VBD sang) (S (VP (TO to) (VP (VB rest))))) (. .))"
TREEBANK = Path(__file__).parents[4] / "shared" / "data" / "treebank" / "wsj_0001-0199.mrg.xz"


def written(folder: Path, text: str, name: str = "trees.mrg") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_traces_function_tags_and_the_outer_bracket_are_removed(tmp_path: Path):
    rows = [row.values for row in tree_table(written(tmp_path, NESTED))]
    assert rows == [
        ("Ada sang to rest .", CLEAN),
        ("( 1/2 )", "(NP (-LRB- -LRB-) (NN 1/2) (-RRB- -RRB-))"),
    ]


def test_one_tree_a_line_reads_as_the_same_trees(tmp_path: Path):
    nested = [row.values for row in tree_table(written(tmp_path, NESTED))]
    lines = written(tmp_path, "\n".join(tree for _, tree in nested) + "\n", "lines.txt")
    assert [row.values for row in tree_table(lines)] == nested
    assert is_tree_file(lines)


@pytest.mark.parametrize(
    ("text", "line", "fault"),
    [
        ("(S (NN a))\n(S (NP (NN b))\n(S (NN c))\n", 2, "unbalanced brackets: 1 bracket not closed"),
        ("(S (NN a))\n(S\n  (NN b)))\n", 3, "unbalanced brackets: one is closed that is not open"),
        ("(S (NN a))\n(S\n  (NP (NN b)\n", 2, "unbalanced brackets: 2 brackets not closed"),
        ("(S (NN a))\n(S (NP))\n", 2, "a bracket without words"),
        ("(S (NN a))\n( (S (-NONE- *)))\n", 2, "a tree without words"),
        ("(S (NN a))\n(S (NN a b))\n", 2, "2 words in one bracket"),
        ("(S (NN a))\n(S a (NN b))\n", 2, "the word 'a' beside a bracket"),
        ("(S (NN a))\nwords\n", 2, "text outside brackets"),
    ],
)
def test_a_bad_tree_is_named_by_its_line(tmp_path: Path, text: str, line: int, fault: str):
    with pytest.raises(DataError) as caught:
        list(tree_table(written(tmp_path, text)))
    assert fault in str(caught.value)
    assert f"line {line}" in str(caught.value)


def test_one_unbalanced_tree_spoils_no_other(tmp_path: Path):
    path = written(tmp_path, "(S (NN a))\n(S (NP (NN b))\n(S (NN c))\n")
    assert [row.values[0] for row in tree_table(path, skip_bad=True)] == ["a", "c"]


@pytest.mark.parametrize("text", ["(a poem)\n(in brackets)\n", "To be (or not)\n", "a\tb\n", "(S (NN a\n(VB b\n"])
def test_other_text_is_not_taken_for_trees(tmp_path: Path, text: str):
    assert not is_tree_file(written(tmp_path, text, "other.txt"))


def test_constituents_and_words_make_the_tree_again():
    tree = parse_tree(CLEAN)
    assert constituents_of(tree)[:3] == [Constituent("S", 0, 5), Constituent("NP", 0, 1), Constituent("VP", 1, 4)]
    assert build_tree(constituents_of(tree), tree.leaves()) == tree
    leaf = Tree("NN", word="a")
    assert build_tree([], [leaf]) == leaf


def test_a_bracket_as_a_word_is_escaped():
    assert str(Tree("X", (Tree("SYM", word="f(x)"),))) == "(X (SYM f-LRB-x-RRB-))"
    assert parse_tree("(X (-LRB- -LRB-))").words() == ["("]


def test_an_outer_bracket_of_several_children_keeps_them():
    cleaned = clean_tree(parse_tree("( (NP (NN a)) (NP (NN b)))"))
    assert str(cleaned) == "(TOP (NP (NN a)) (NP (NN b)))"


@pytest.mark.slow
@pytest.mark.skipif(not TREEBANK.is_file(), reason="the sample of the Penn Treebank is not here")
def test_all_trees_of_the_penn_treebank_sample_are_read():
    rows = list(tree_table(TREEBANK))
    assert len(rows) == 3_914
    assert sum(len(row.values[0].split(" ")) for row in rows) == 94_084
    for row in rows[::97]:
        assert str(parse_tree(row.values[1])) == row.values[1]
