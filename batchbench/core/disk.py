"""IO: warn about file systems on which paid answers are not safe."""

import os
from pathlib import Path

MEMORY = {"tmpfs", "ramfs"}
SHARED = {"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "glusterfs", "beegfs", "fuse.sshfs", "fuse.glusterfs"}


def storage_warning(folder: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> str | None:
    """A warning for the user before paid answers are written to `folder`; None if its file system is safe."""
    kind = _file_system(folder, mountinfo)
    if kind in MEMORY:
        return f"{folder} is in memory ({kind}): paid answers are lost when the machine stops; choose another --home"
    if kind in SHARED:
        return f"{folder} is shared between machines ({kind}), where locks may not work: use it on one at a time"
    return None


def _file_system(folder: Path, mountinfo: Path) -> str:
    """The type of the file system that `folder` is on; empty if it is unknown."""
    try:
        device = folder.stat().st_dev
        mounts = mountinfo.read_text()
    except OSError:
        return ""
    for mount in mounts.splitlines():
        location, _, details = mount.partition(" - ")
        if location.split()[2:3] == [f"{os.major(device)}:{os.minor(device)}"]:
            return details.split()[0]
    return ""
