"""IO: the file in which a person labels answers: CSV for a spreadsheet, or JSON lines."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from batchbench.analyze.human_check import NOTHING_CHOSEN
from batchbench.core.store import Store, content
from batchbench.core.text import guard_formulas, repair_json, sanitize, sanitize_json, unguard_formulas
from batchbench.errors import DataError, UsageError, unknown

MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}  # first bytes -> encoding
SEPARATORS = ",;\t"  # spreadsheets write one of them, by the language of the computer
MAX_CELL = 1 << 24  # characters


class SheetRow(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to label. The label is empty until a person fills it in."""

    id: str
    prompt: str = ""
    answer: str = ""
    label: str | None = ""
    note: str | None = ""


def write_sheet(rows: Sequence[SheetRow], path: Path, instructions: str, store: Store) -> Path:
    """Write the file and, beside it, the instructions as text; returns the path of the instructions.

    Refuses to replace a file with other content, which may hold labels.
    """
    made = (_as_csv(rows) if path.suffix == ".csv" else _as_lines(rows)).encode()
    beside = path.with_suffix(".txt")
    if path.exists() and content(path) != made:
        raise UsageError(f"{path} exists and may hold labels: choose another file with -o, or move it away")
    store.write(path, made)
    store.write(beside, sanitize(instructions).encode())
    return beside


def check_suffix(path: Path) -> None:
    """Refuse a file that is neither CSV nor JSON lines."""
    if path.suffix not in (".csv", ".jsonl"):
        raise UsageError(f"{path} ends neither in .csv nor in .jsonl: choose one of them")


def _as_csv(rows: Sequence[SheetRow]) -> str:
    """CSV with a byte order mark, without which some spreadsheets do not read UTF-8."""
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\r\n", quoting=csv.QUOTE_ALL)
    writer.writerow(SheetRow.__struct_fields__)
    for row in rows:
        writer.writerow([guard_formulas(sanitize(value or "")) for value in msgspec.structs.astuple(row)])
    return f"\ufeff{target.getvalue()}"


def _as_lines(rows: Sequence[SheetRow]) -> str:
    return "".join(f"{sanitize_json(msgspec.json.encode(row).decode())}\n" for row in rows)


def read_sheet(path: Path) -> list[tuple[int, SheetRow]]:
    """The rows of a file, each with its number in the spreadsheet, or its line."""
    check_suffix(path)
    return _from_csv(path) if path.suffix == ".csv" else _from_lines(path)


def _from_csv(path: Path) -> list[tuple[int, SheetRow]]:
    """A spreadsheet may have saved the file with another separator or encoding."""
    raw = content(path)
    encoding = next((name for mark, name in MARKS.items() if raw.startswith(mark)), "utf-8")
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError:
        text = raw.decode("latin-1")  # every byte is a character; ids and labels are ASCII in any such encoding
    heading = text.partition("\n")[0]
    separator = max(SEPARATORS, key=heading.count)
    csv.field_size_limit(MAX_CELL)
    try:
        table = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator))
    except csv.Error as error:
        raise DataError(f"{path} is not CSV ({error}): save it as CSV with UTF-8") from None
    names = [name.strip().lower() for name in table[0]] if table else []
    for name in ("id", "label"):
        if name not in names:
            raise DataError(
                f"{path} has no column {name!r}: its first row must be {', '.join(SheetRow.__struct_fields__)}"
            )
    rows = []
    for number, cells in enumerate(table[1:], 2):
        values = {name: unguard_formulas(cell) for name, cell in zip(names, cells, strict=False)}
        if any(value.strip() for value in values.values()):
            known = {name: values[name] for name in SheetRow.__struct_fields__ if name in values}
            rows.append((number, SheetRow(**{"id": "", **known})))
    return rows


def _from_lines(path: Path) -> list[tuple[int, SheetRow]]:
    rows = []
    for number, line in enumerate(content(path).split(b"\n"), 1):
        if line.strip():
            try:
                rows.append((number, msgspec.json.decode(repair_json(line), type=SheetRow)))
            except ValueError as error:
                raise DataError(f"{path} line {number} cannot be read ({error}): repair this line") from None
    return rows


def labels_of(
    path: Path, rows: Sequence[tuple[int, SheetRow]], known: Sequence[str], letters: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """The labels in a file by custom id, without rows that have none yet.

    `letters` has the label that the letter of an option stands for, by custom id and letter.
    """
    found: dict[str, str] = {}
    places: dict[str, int] = {}
    allowed = {label.lower(): label for label in (*known, *NOTHING_CHOSEN)}
    for number, row in rows:
        custom_id, written = row.id.strip(), (row.label or "").strip().lower()
        if custom_id in places:
            raise UsageError(
                f"{path} row {number}: {custom_id} is in row {places[custom_id]} already: remove one of them"
            )
        places[custom_id] = number
        if not written:
            continue
        label = allowed.get(written) or letters.get(custom_id, {}).get(written.strip("().").strip())
        if label is None:
            raise UsageError(f"{path} row {number}: {unknown('label', written, allowed)}")
        found[custom_id] = label
    return found


def instructions(path: Path, probe: str, run: str, labels: Sequence[str], *, letters: bool) -> str:
    """What a person who labels answers must know."""
    option = "You may write the letter of the chosen option instead, such as a.\n" if letters else ""
    return f"""\
How to label the answers in {path.name}

Read each prompt and the answer to it. Write in the column `label` what the answer finally chose:

  {", ".join(labels)}
  none        it chose nothing: it refuses, it is empty, cut off, or not one of these
  ambiguous   it chose several, or contradicts itself

{option}Judge the answer alone, not what you expect. If a text only mentions an option, that is no choice.
`note` is for your remarks. Leave `id` as it is. A second person must label a copy without seeing your labels.

probe: {probe}
run: {run}
"""
