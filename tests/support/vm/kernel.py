"""Debian's own kernel for the tests' virtual machines: downloaded and unpacked, never installed."""

import glob
import lzma
import os
import re
import shutil
import subprocess

PACKAGE = "linux-image-amd64"  # the cloud variant has no RDMA


class Unavailable(Exception):
    """Something that the virtual machines need is missing; the text says what."""


class Kernel:
    """Boots from `image`; modules by name with what they depend on."""

    def __init__(self, folder):
        self.folder = folder
        self.image = os.path.join(folder, "vmlinux")
        if not os.path.exists(self.image):
            _download(folder)
        self.version = os.listdir(os.path.join(folder, "unpacked/lib/modules"))[0]

    def modules(self, names):
        """Files of these modules, in the order in which they can be loaded."""
        ordered = []
        for name in names:
            shown = subprocess.run(
                ["modprobe", "-d", os.path.join(self.folder, "unpacked"), "-S", self.version, "--show-depends", name],
                capture_output=True, text=True, check=False)  # fmt: skip
            if shown.returncode != 0:
                raise Unavailable(f"this kernel has no module {name}: {shown.stderr.strip()}")
            for path in re.findall(r"^insmod (\S+)", shown.stdout, re.MULTILINE):
                if path not in ordered:
                    ordered.append(path)
        return ordered


def download(package, folder):
    """Unpacks the package that a Debian metapackage stands for into folder/unpacked; the folder is made anew."""
    depends = subprocess.run(["apt-cache", "depends", package], capture_output=True, text=True, check=False).stdout
    real = re.search(r"Depends: (linux-\S+)", depends)
    if not real:
        raise Unavailable(f"no Debian package {package} is on offer here (apt-get update?)")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    unpacked = os.path.join(folder, "unpacked")
    got = subprocess.run(["apt-get", "download", "-qq", real[1]], cwd=folder, capture_output=True, check=False)
    archives = glob.glob(os.path.join(folder, "*.deb"))
    if got.returncode != 0 or not archives:
        raise Unavailable(f"{real[1]} could not be downloaded")
    subprocess.run(["dpkg-deb", "-x", archives[0], unpacked], check=True)
    os.remove(archives[0])
    return unpacked


def _download(folder):
    unpacked = download(PACKAGE, folder)
    version = os.listdir(os.path.join(unpacked, "lib/modules"))[0]
    subprocess.run(["depmod", "-b", unpacked, version], check=True)
    _unpack_image(os.path.join(unpacked, "boot", "vmlinuz-" + version), os.path.join(folder, "vmlinux"))


def _unpack_image(compressed, image):
    """The bare kernel boots without unpacking itself, which takes seconds under emulation."""
    with open(compressed, "rb") as file:
        data = file.read()
    start = data.find(b"\xfd7zXZ\0")
    if start < 0:
        shutil.copy(compressed, image)  # packed in another way: boots, too
        return
    with open(image + ".part", "wb") as file:
        file.write(lzma.LZMADecompressor().decompress(data[start:]))
    os.rename(image + ".part", image)
