"""Pure: a file as a multipart form."""

from collections.abc import Mapping, Sequence

BOUNDARY = "batchbench-form-boundary"


def multipart(fields: Mapping[str, str], filename: str, body: Sequence[bytes]) -> tuple[str, list[bytes]]:
    """The content type and the parts of a form with some fields and one file."""
    head = b""
    for name, value in fields.items():
        head += f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
    head += (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{filename}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    ).encode()
    return f"multipart/form-data; boundary={BOUNDARY}", [head, *body, f"\r\n--{BOUNDARY}--\r\n".encode()]
