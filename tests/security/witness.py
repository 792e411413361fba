"""An audit hook in the real program that logs the files it opens, the hosts it calls and the processes it starts."""

import json
import os
from pathlib import Path
from typing import Any

SITECUSTOMIZE = """
import json, os, sys
_log = os.open(os.environ["WITNESS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
def _say(*words):
    os.write(_log, (json.dumps([os.getpid(), *words], default=repr) + "\\n").encode())
def _hook(event, args):
    if event == "socket.connect":
        _say("connect", args[1] if isinstance(args[1], str) else list(args[1]))
    elif event == "socket.getaddrinfo":
        _say("resolve", args[0])
    elif event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR):
        _say("write", os.path.abspath(os.fsdecode(args[0])) if not isinstance(args[0], int) else args[0])
    elif event in ("os.mkdir", "os.rename", "os.symlink", "os.link"):
        _say("write", os.path.abspath(os.fsdecode(args[0])))
    elif event == "subprocess.Popen":
        _say("start", list(map(os.fsdecode, args[1])), sorted(args[3] if args[3] is not None else os.environ))
    elif event == "os.posix_spawn":
        _say("start", list(map(os.fsdecode, args[1])), sorted(map(os.fsdecode, args[2])))
sys.addaudithook(_hook)
"""


class Witness:
    """Pass `environment` to the program; `saw` then lists what it did."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
        self.log = folder / "log"
        path = os.pathsep.join([str(folder), str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.environment = {"PYTHONPATH": path, "WITNESS": str(self.log), "PYTHONDONTWRITEBYTECODE": "1"}

    def saw(self, kind: str) -> list[Any]:
        """Every action of a kind, of the program and of its child processes."""
        actions = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [action[2:] if kind == "start" else action[2] for action in actions if action[1] == kind]
