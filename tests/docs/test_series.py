"""The commands and the program of the page on series run as they stand there."""

import random
from datetime import date, timedelta
from pathlib import Path

import pytest

SMALL = "--set task.input_length=28 --set task.horizon=14"


def _write_shop(folder: Path) -> None:
    """Sales of two shops by price and holiday, and the prices and holidays of two more weeks."""
    rng, rows = random.Random(0), []
    for day in range(214):
        for shop, level in (("north", 20), ("south", 40)):
            price, holiday = round(rng.uniform(1, 3), 2), rng.choice(["no", "no", "yes"])
            sold = level - 4 * price + 6 * (holiday == "yes") + rng.gauss(0, 0.2)
            rows.append(f"{date(2024, 1, 1) + timedelta(days=day)},{shop},{price},{holiday},{sold:.2f}")
    last = [row.rpartition(",")[0] + "," for row in rows[400:]]
    for name, some in (("shop.csv", rows[:400]), ("shop_next.csv", [*rows[:400], *last])):
        (folder / name).write_text("\n".join(["date,shop,price,holiday,sold", *some]) + "\n")


@pytest.mark.slow
def test_the_commands_and_the_program_run_in_the_order_they_stand_in(series_page, run_inside, workplace, capsys):
    commands = series_page.short_commands()
    assert commands[0] == "regard data show sales --rows 4380 > sales.tsv"
    code, out, err = run_inside(commands[0].partition(" > ")[0])
    assert code == 0, err
    (workplace / "sales.tsv").write_text(out)
    _write_shop(workplace)
    for command in commands[1:]:
        is_training = " train " in command or " compare " in command
        code, out, err = run_inside(f"{command} {SMALL}" if is_training else command)
        assert code == 0, f"{command}\n{err}"
        assert out.strip(), f"{command} printed nothing"
    assert (workplace / "forecast.png").stat().st_size
    (program,) = series_page.blocks("python")
    exec(program, {})
    assert len(capsys.readouterr().out.splitlines()) == 4
