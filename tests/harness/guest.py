"""A Linux guest: the distribution's kernel, an initramfs with busybox, the volume as its virtio
disk.

The kernel package is downloaded and unpacked, never installed. The guest is driven over its serial
console: its init script prints lines that begin with `@`. It has no network and no disk but the
volume, and runs under software emulation, so no privilege is needed.
"""

import lzma
import os
import pathlib
import platform
import re
import select
import shutil
import subprocess
import time

from .case import Skip

# What a disk and ext4 may need; what the kernel has built in or does not know is left out.
MODULES = ["virtio_pci", "virtio_blk", "nbd", "crc32c_generic", "crc32c_intel", "libcrc32c", "ext4"]
# Small kernels first. The names are those of Debian, then Ubuntu.
META_PACKAGES = [
    "linux-image-cloud-amd64",
    "linux-image-amd64",
    "linux-image-virtual",
    "linux-image-generic",
]


def need_guest(t):
    """Skips the test where no guest can be had, otherwise returns (kernel, directory of
    modules)."""
    if platform.machine() != "x86_64":
        raise Skip("the guest test knows x86_64 only")
    t.need("qemu-system-x86_64", "busybox", "cpio", "dpkg-deb", "apt-get", "mke2fs")
    if "statically linked" not in file_kind(shutil.which("busybox")):
        raise Skip("busybox is not the static one (package busybox-static)")
    return kernel(t)


def file_kind(program):
    """`statically linked` if the program names no interpreter."""
    data = pathlib.Path(program).read_bytes()[:4096]
    return "dynamic" if b"ld-linux" in data or b"/ld-musl" in data else "statically linked"


def kernel(t):
    store = t.downloads / "guest-kernel"
    if not (store / "done").exists():
        shutil.rmtree(store, ignore_errors=True)
        work = pathlib.Path(f"{store}.{os.getpid()}")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        t.later(lambda: shutil.rmtree(work, ignore_errors=True))
        download(t, work)
        (work / "done").touch()
        try:
            work.rename(store)
        except OSError:
            # Another test was first.
            pass
    images = sorted((store / "root" / "boot").glob("vmlinuz-*"))
    if not images:
        raise Skip("the kernel package holds no vmlinuz")
    return images[0], store / "root"


def download(t, work):
    """The kernel's packages, unpacked under work/root."""

    def apt(*words, ok=range(256)):
        return t.run(*words, ok=ok, cwd=work, timeout=180)

    lists_are_fresh = False
    for meta in META_PACKAGES:
        names = packages_of(apt, meta)
        if not names and not lists_are_fresh:
            # A fresh container has no package lists.
            lists_are_fresh = True
            apt(*t.as_root(), "apt-get", "update", "-q")
            names = packages_of(apt, meta)
        if names and all(apt("apt-get", "download", "-q", name).returncode == 0 for name in names):
            for package in work.glob("*.deb"):
                apt("dpkg-deb", "-x", package, work / "root", ok=(0,))
                package.unlink()
            return
    raise Skip("no kernel package can be downloaded (apt-get download)")


def package(t, name):
    """The files of a package of the distribution, unpacked and not installed."""
    store = t.downloads / f"package-{name}"
    if not (store / "done").exists():
        work = pathlib.Path(f"{store}.{os.getpid()}")
        work.mkdir(parents=True)
        t.later(lambda: shutil.rmtree(work, ignore_errors=True))
        if t.run(
            "apt-get", "download", "-q", name, ok=range(256), cwd=work, timeout=120
        ).returncode != 0:
            raise Skip(f"the package {name} cannot be downloaded (apt-get download)")
        for file in work.glob("*.deb"):
            t.run("dpkg-deb", "-x", file, work / "root")
        (work / "done").touch()
        try:
            work.rename(store)
        except OSError:
            # Another test was first.
            pass
    return store / "root"


def packages_of(apt, meta):
    """The packages behind a meta package: the image, and the modules where they are apart."""
    pattern = re.compile(
        r"^\s*\|?Depends: (linux-image-[0-9]\S+|linux-image-unsigned-\S+|linux-modules-[0-9]\S+)$",
        re.MULTILINE,
    )
    found, waiting = [], [meta]
    while waiting:
        for name in pattern.findall(apt("apt-cache", "depends", waiting.pop()).stdout):
            if name not in found:
                found.append(name)
                waiting.append(name)
    return found


# The initramfs.


def initramfs(t, root, script, programs=()):
    """busybox, e2fsprogs and other programs with their libraries, the modules in order, and
    /init."""
    top = t.dir / "initramfs"
    for name in ("bin", "sbin", "dev", "proc", "sys", "mnt", "modules", "etc"):
        (top / name).mkdir(parents=True)
    shutil.copy(shutil.which("busybox"), top / "bin" / "busybox")
    (top / "etc" / "mtab").symlink_to("/proc/mounts")
    sources = [pathlib.Path(shutil.which(program)) for program in ("mke2fs", "e2fsck")]
    for source in [*sources, *map(pathlib.Path, programs)]:
        name, source = source.name, source.resolve()
        shutil.copy(source, top / "sbin" / name)
        for library in re.findall(r"(/\S+) \(0x", t.run("ldd", source).stdout):
            # One of a package that is only unpacked is where the loader looks.
            known = library.startswith(("/lib", "/usr/lib"))
            place = top / library.lstrip("/") if known else top / "lib" / pathlib.Path(library).name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, place)
    names = []
    for number, (name, data) in enumerate(modules(t, root)):
        (top / "modules" / f"{number:02}-{name}.ko").write_bytes(data)
        names.append(name)
    print("modules:", " ".join(names) or "none, all built in")
    (top / "init").write_text(script)
    (top / "init").chmod(0o755)
    image = t.dir / "initramfs.cpio"
    listing = "\n".join(str(path.relative_to(top)) for path in sorted(top.rglob("*")))
    with open(image, "wb") as out:
        subprocess.run(
            ["cpio", "--quiet", "-o", "-H", "newc"],
            input=listing.encode(),
            stdout=out,
            cwd=top,
            check=True,
        )
    return image


def modules(t, root):
    """(name, bytes) of the modules, each after those that it depends on."""
    files = {}
    for path in root.rglob("*.ko*"):
        files[path.name.split(".ko")[0].replace("-", "_")] = path
    done = {}

    def add(name):
        path = files.get(name.replace("-", "_"))
        if path is None or name in done:
            return
        data = path.read_bytes()
        if path.suffix == ".xz":
            data = lzma.decompress(data)
        elif path.suffix == ".zst":
            t.need("zstd")
            data = subprocess.run(["zstd", "-dcq", path], stdout=subprocess.PIPE, check=True).stdout
        for needed in re.search(rb"\0depends=([^\0]*)", data).group(1).decode().split(","):
            if needed:
                add(needed)
        done[name] = data

    for name in MODULES:
        add(name)
    return done.items()


class Guest:
    """A running qemu."""

    def __init__(self, t, image, ramdisk, uri, job, memory_mib=384):
        command = [
            "qemu-system-x86_64", "-machine", "q35,accel=tcg", "-cpu", "max", "-m", str(memory_mib),
            "-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot",
            "-kernel", str(image), "-initrd", str(ramdisk), "-append",
            f"console=ttyS0 quiet panic=-1 job={job}", "-drive",
            f"file={uri},format=raw,if=none,id=disk,cache=none,discard=unmap,detect-zeroes=off",
            "-device", "virtio-blk-pci,drive=disk",
        ]
        print("$", *command, "&", flush=True)
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.buffer = b""
        self.text = []
        t.later(self.kill)

    def lines(self, timeout):
        """The guest's `@` lines as they come, until it ends or the time is over."""
        deadline = time.monotonic() + timeout
        output = self.process.stdout.fileno()
        while True:
            while b"\n" in self.buffer:
                line, self.buffer = self.buffer.split(b"\n", 1)
                line = line.decode(errors="replace").strip()
                self.text.append(line)
                if line.startswith("@"):
                    yield line[1:].split()
            left = deadline - time.monotonic()
            if left <= 0:
                raise AssertionError(
                    "the guest said nothing more in time:\n" + "\n".join(self.text[-40:])
                )
            if select.select([output], [], [], left)[0]:
                data = os.read(output, 65536)
                if not data:
                    return
                self.buffer += data

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
