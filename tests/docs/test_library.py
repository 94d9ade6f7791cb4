"""Every line of the page on the library runs."""

import pytest
import torch
from tests.docs.conftest import ROOT, Page


@pytest.mark.slow
def test_the_programs_run_one_after_the_other(pretrained, monkeypatch, capsys, caplog):
    monkeypatch.chdir(pretrained)
    monkeypatch.setenv("REGARD_CACHE", str(pretrained / "cache"))
    torch.set_default_dtype(torch.float32)
    names: dict[str, object] = {}
    for program in Page(ROOT / "docs" / "library.md").blocks("python"):
        exec(program, names)
        assert capsys.readouterr().out.strip(), program
    for name in ("a.html", "a.png", "runs/library/report.html"):
        assert (pretrained / name).stat().st_size > 0
    # The run is evaluated on its own validation file, which it was not trained on.
    assert "was trained on these rows" not in caplog.text
