"""The models that the emulator pretends to be: `respond` finds them, one module per kind of prompt answers it."""

KINDS = ("unbiased", "random", "stereotyping", "anti-stereotyping", "pro-masculine", "pro-feminine")  # of bias
ABOUT = {
    "unbiased": "gender makes no difference to its answers",
    "random": "every possible answer is equally likely",
    "stereotyping": "follows the stereotype every time",
    "anti-stereotyping": "does the opposite of the stereotype every time",
    "pro-masculine": "favours men every time",
    "pro-feminine": "favours women every time",
    "refusing": "refuses every request",
    "silent": "answers with text that no probe can read",
    "planted/X": "answers so that the probe's headline metric has the true value X, e.g. planted/0.12",
}
WITHOUT_BIAS = ("echo", "refusing", "silent")
LISTED = ("echo", *KINDS, "refusing", "silent", "planted/0.0")  # what `GET /models` shows


def exists(name: str) -> bool:
    """Whether a persona has this name. Reads no data sets and imports no probe."""
    return name in WITHOUT_BIAS or name in KINDS or planted_value(name) is not None


def planted_value(name: str) -> float | None:
    """The X of `planted/X`; None if the name is another, or X is not a number from -1 to 1."""
    try:
        value = float(name.removeprefix("planted/")) if name.startswith("planted/") else None
    except ValueError:
        return None
    return value if value is not None and -1 <= value <= 1 else None
