"""Days and years in words, and the ordinals that dates are written with.

Only what is certain: days in English and Chinese, years in Chinese. A table has one
entry per day of the month or per year.
"""


def _entries(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


ENGLISH_TENS = {2: "twenty", 3: "thirty"}
ENGLISH_ORDINALS = _entries(
    "first, second, third, fourth, fifth, sixth, seventh, eighth, ninth, tenth, eleventh, twelfth, thirteenth, "
    "fourteenth, fifteenth, sixteenth, seventeenth, eighteenth, nineteenth, twentieth"
)
CHINESE_DIGITS = "〇一二三四五六七八九"


def word_tables(language: str, years: range) -> dict[str, tuple[str, ...]]:
    """What a language writes in words, by the name of the field; empty where it is not known here.

    Args:
        language: Two letters, such as `en`.
        years: The years that the tables of years must hold, all from 1900 to 2099.
    """
    days = range(1, 32)
    match language:
        case "en":
            return {
                "day_ordinal": tuple(english_ordinal(day) for day in days),
                "day_words": tuple(english_day(day) for day in days),
            }
        case "fr":
            return {"day_ordinal": ("1er", *(str(day) for day in days[1:]))}
        case "zh":
            return {
                "day_words": tuple(chinese_day(day) for day in days),
                "year_words": tuple("".join(CHINESE_DIGITS[int(digit)] for digit in str(year)) for year in years),
            }
        case _:
            return {}


def english_ordinal(day: int) -> str:
    """A day in digits and its ending.

    Example:
        >>> [english_ordinal(day) for day in (1, 2, 3, 4, 11, 12, 13, 21, 22, 23)]
        ['1st', '2nd', '3rd', '4th', '11th', '12th', '13th', '21st', '22nd', '23rd']
    """
    ending = "th" if day in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{ending}"


def english_day(day: int) -> str:
    """A day as an ordinal in words: `twenty-third`."""
    if day == 30:
        return "thirtieth"
    if day <= 20:
        return ENGLISH_ORDINALS[day - 1]
    return f"{ENGLISH_TENS[day // 10]}-{ENGLISH_ORDINALS[day % 10 - 1]}"


def chinese_day(day: int) -> str:
    """A day in Chinese numerals, as it is written before the character for day."""
    tens, unit = divmod(day, 10)
    return ("" if tens < 2 else CHINESE_DIGITS[tens]) + ("十" if tens else "") + (CHINESE_DIGITS[unit] if unit else "")
