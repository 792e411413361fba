"""IO: what kind of disk a folder is on, as far as money hangs on it."""

import os
from pathlib import Path

MEMORY = {"tmpfs", "ramfs"}
SHARED = {"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "glusterfs", "beegfs", "fuse.sshfs", "fuse.glusterfs"}


def storage_warning(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """What is to be known of a folder before paid answers are kept there; null if it is a disk like most."""
    kind = _kind(folder, mounts)
    if kind in MEMORY:
        return f"{folder} is in memory ({kind}): what is paid for is lost when the machine stops; choose another --home"
    if kind in SHARED:
        return f"{folder} is shared between machines ({kind}), where locks may not hold: use it on one at a time"
    return None


def _kind(folder: Path, mounts: Path) -> str:
    try:
        device = folder.stat().st_dev
        table = mounts.read_text()
    except OSError:
        return ""  # a system without such a table
    for mount in table.splitlines():
        place, _, about = mount.partition(" - ")
        if place.split()[2:3] == [f"{os.major(device)}:{os.minor(device)}"]:
            return about.split()[0]
    return ""
