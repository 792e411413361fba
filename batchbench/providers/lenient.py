"""Pure: decode JSON in which any optional part may be null, absent or of another type.

A paid answer is not lost because of a field beside it. Wire formats give every field a default that may be missing. The
fields that lead to the text are in `NEEDED` of their format: with another type there, the whole is refused, because a
part that is left out would change the answer. A whole number may be written as 20.0 or as "20".
"""

import types
from typing import Any, get_args, get_origin

import msgspec


def lenient(value: object, kind: Any, *, whole: bool = False) -> Any:
    """`value` as a `kind`; a part that does not fit gets its default. Raises ValidationError if it has no default.

    `whole`: of a list, leave no item out.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        for option in get_args(kind) if get_origin(kind) is types.UnionType else (kind,):
            if option is int and isinstance(value, float | str):
                return msgspec.convert(value, int, strict=False)
            if isinstance(value, dict) and isinstance(option, type) and issubclass(option, msgspec.Struct):
                return option(**_fields(value, option))
            if isinstance(value, list) and get_origin(option) is list:
                return _items(value, get_args(option)[0], whole=whole)
        raise


def _fields(value: dict[str, object], kind: type[msgspec.Struct]) -> dict[str, object]:
    found = {}
    needed = getattr(kind, "NEEDED", ())
    for field in msgspec.structs.fields(kind):
        given = field.encode_name in value
        try:
            found[field.name] = lenient(value[field.encode_name], field.type, whole=field.name in needed)
        except (KeyError, msgspec.ValidationError):
            if field.required or (given and field.name in needed):
                raise msgspec.ValidationError(f"no readable `{field.encode_name}`") from None
    return found


def _items(value: list[object], kind: Any, *, whole: bool) -> list[Any]:
    found = []
    for item in value:
        try:
            found.append(lenient(item, kind))
        except msgspec.ValidationError:
            if whole:
                raise
    return found
