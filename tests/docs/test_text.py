"""The commands, programs and messages of the page on language models are those of the package."""

import pytest

NUM_PROGRAMS = 2
SMALL = "--set model.num_layers=1 --set model.model_dim=32"


@pytest.mark.slow
def test_the_commands_and_the_programs_run_in_the_order_they_stand_in(text_page, run_inside, capsys):
    assert text_page.commands()[0] == "regard train text.txt --tokenizer characters --minutes 3 --out runs/text"
    for command in text_page.short_commands():
        code, out, err = run_inside(f"{command} {SMALL}" if " train " in command else command)
        assert code == 0, f"{command}\n{err}"
        assert out.strip(), f"{command} printed nothing"
    programs = text_page.blocks("python")
    assert len(programs) == NUM_PROGRAMS
    for program in programs:
        exec(program, {})
        assert capsys.readouterr().out.strip()


@pytest.mark.slow
def test_the_messages_are_those_of_the_page(text_page, run_inside, workplace):
    (workplace / "short.txt").write_text("hello")
    (workplace / "one.csv").write_text("source\nhello\n")
    page = " ".join(text_page.text.split())
    for command, message in {
        "train one.txt two.txt": "aligned files must have the same number of lines, ",
        "train one.csv": "one.csv has 1 column (source), but 2 are needed (source, target)",
        "train short.txt": " is too short to hold out a part for validation: ",
        "train more.txt --set task.window=5000": " tokens, too few for one window of ",
        "train text.txt posts.jsonl --task language-modeling": "files read together must be of one kind, but ",
        "train posts.jsonl --task language-modeling --set task.documents=lines": "task.documents is for plain text, ",
        "train text.txt --set data.train_rows=5": "data.train_rows applies to many independent documents, ",
        "compare text.txt --models gpt,lstm --steps 2 --sizes 10":
            "a smaller training set is made of some of many documents, ",
        "compare text.txt --models gpt,lstm --steps 2 --set task.window=5000":
            "models of text are compared on spans that all of them score, ",
        "compare text.txt --models gpt,lstm --steps 2 --beam 4":
            "models of text are compared by likelihoods, not by generated text: ",
        "train text.txt --model gpt2 --set model.context_length=64 --set task.window=128":
            "learned positions must cover the longest input, ",
        "train text.txt --set model.encoder_layers=2": "a language model is decoder-only: ",
        "train pairs.tsv --model gpt": "a sequence-to-sequence model needs an encoder and a decoder, ",
        "train text.txt --model lstm --steps 2 --out runs/text": "",
        "attention runs/text hello": "this model has no attention layers: ",
        "predict runs/text hello --top-k 5": "top_k needs a temperature above 0, ",
        "train pairs.tsv --steps 2 --out runs/pairs": "",
        "generate runs/pairs hello": "generate is for language models, ",
    }.items():  # fmt: skip
        code, _, err = run_inside(f"regard {command}")
        assert code == (2 if message else 0), err
        assert message in err
        assert message in page
