"""Archives that a Linux kernel unpacks as its first file system (cpio, format newc).

Files are read from where they lie: nothing is staged, so half a gigabyte of libraries costs one copy.
"""

import os
import re
import shutil
import stat
import subprocess


class Initramfs:
    """Writes one archive; several, one after the other, are one file system. Use as a context manager: the file is
    there, whole, at its end, also for who reads an older one meanwhile."""

    def __init__(self, path):
        self._path = path
        self._file = open(path + ".new", "wb")
        self._inode = 0
        self._names = set()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._entry("TRAILER!!!", 0, 0, None)
        self._file.close()
        os.replace(self._path + ".new", self._path)

    def folder(self, name):
        """name and the folders above it; names have no leading slash."""
        if name and name not in self._names:
            self.folder(os.path.dirname(name))
            self._entry(name, stat.S_IFDIR | 0o755, 0, None)

    def text(self, name, text, executable=False):
        self.folder(os.path.dirname(name))
        data = text.encode()
        self._entry(name, stat.S_IFREG | (0o755 if executable else 0o644), len(data), data)

    def file(self, name, source):
        """A file's contents; links are followed."""
        if name in self._names:
            return
        self.folder(os.path.dirname(name))
        mode = 0o755 if os.access(source, os.X_OK) else 0o644
        with open(source, "rb") as data:
            self._entry(name, stat.S_IFREG | mode, os.fstat(data.fileno()).st_size, data)

    def tree(self, name, source):
        for folder, _, files in os.walk(source):
            for entry in files:
                path = os.path.join(folder, entry)
                self.file(os.path.join(name, os.path.relpath(path, source)), path)

    def program(self, name, source):
        """A program or library, and the shared libraries that it needs, at the paths where it looks for them."""
        self.file(name, source)
        for library in shared_libraries(source):
            self.file(os.path.normpath(library).lstrip("/"), library)

    def _entry(self, name, mode, size, data):
        if name in self._names:
            return
        self._names.add(name)
        self._inode += 1
        fields = [self._inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name) + 1, 0]
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        self._file.write(head + b"\0" * (-len(head) % 4))
        if isinstance(data, bytes):
            self._file.write(data)
        elif data is not None:
            shutil.copyfileobj(data, self._file, 1 << 20)
        self._file.write(b"\0" * (-size % 4))


def shared_libraries(program):
    """What the dynamic linker would load for a program; nothing for one that is linked statically."""
    run = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    missing = re.findall(r"(\S+) => not found", run.stdout)
    if missing:
        raise FileNotFoundError(f"{program} needs {', '.join(missing)}, which is not here")
    return re.findall(r"(?:=> )?(/\S+) \(0x", run.stdout)
