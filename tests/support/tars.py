"""Tar files made by the standard library, good and bad."""

import io
import tarfile

from support.images import smooth


def jpeg(seed=0, size=(20, 24)):
    """The bytes of a small image."""
    file = io.BytesIO()
    smooth(*size, seed=seed).save(file, "JPEG")
    return file.getvalue()


def make_tar(path, members, format=tarfile.PAX_FORMAT):
    """A tar of (name, content), or of (TarInfo, content) for whatever is no plain file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=format) as tar:
        for name, content in members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def samples(count, classes=2, first=0):
    """Members of so many labelled images."""
    for i in range(first, first + count):
        yield f"{i:05d}.jpg", jpeg(i)
        yield f"{i:05d}.cls", str(i % classes).encode()


def special(name, kind, target="x"):
    """The header of a link or a device."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info
