"""Builds and runs the image without a daemon: buildah and podman, in a store of the project's own cache."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.local.servers.server import CACHE, PROJECT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PACKAGES = ("buildah", "podman", "runc", "netavark", "aardvark-dns", "debootstrap", "ca-certificates", "git")
HOME = (CACHE / "containers").resolve()  # podman keeps to the path that its store was made by
BASE, IMAGE = "localhost/debian:bookworm-slim", "localhost/cdf-replicator"
SLIM = "localhost/debian:as-published"
"""Second name of the base that ``_debian`` makes now. A store may hold an older one, which was larger than the published image."""
LEFT_OUT = ("usr/share/man", "usr/share/info", "usr/share/locale", "var/cache/apt", "var/lib/apt/lists")
DPKG = (
    "path-exclude /usr/share/doc/*\npath-include /usr/share/doc/*/copyright\n"
    "path-exclude /usr/share/info/*\npath-exclude /usr/share/locale/*\npath-exclude /usr/share/man/*\n"
)
APT = 'Dir::Cache::pkgcache "";\nDir::Cache::srcpkgcache "";\nAPT::Keep-Downloaded-Packages "false";\n'
HARDENED = ("--read-only", "--tmpfs", "/tmp:mode=1777,exec", "--cap-drop=all", "--security-opt", "no-new-privileges")


def lay_out() -> dict[str, str]:
    """Write the configuration of both tools; returns the environment to run them in.

    runc as the runtime and no systemd: what works inside a container of a CI too.
    """
    HOME.mkdir(parents=True, exist_ok=True)
    files = {
        "storage.conf": f'[storage]\ndriver = "{_driver()}"\ngraphroot = "{HOME}/store"\nrunroot = "{HOME}/run"\n',
        "registries.conf": 'unqualified-search-registries = ["localhost"]\n',
        "containers.conf": (
            '[containers]\ndefault_ulimits = ["nofile=20000:20000", "nproc=20000:20000"]\n'
            '[network]\nnetwork_backend = "netavark"\n'
            '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        ),
        "policy.json": '{"default": [{"type": "insecureAcceptAnything"}]}\n',
    }
    for name, text in files.items():
        (HOME / name).write_text(text)
    return {
        **os.environ,
        "CONTAINERS_STORAGE_CONF": str(HOME / "storage.conf"),
        "CONTAINERS_REGISTRIES_CONF": str(HOME / "registries.conf"),
        "CONTAINERS_CONF": str(HOME / "containers.conf"),
        "BUILDAH_ISOLATION": "chroot",
    }


def _driver() -> str:
    """Overlay, five times as fast, unless the file system below can't carry one: it may be an overlay itself."""
    with tempfile.TemporaryDirectory(dir=HOME) as folder:
        for name in ("lower", "upper", "work", "merged"):
            Path(folder, name).mkdir()
        layers = f"lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/work"
        mount = ["mount", "-t", "overlay", "overlay", "-o", layers, f"{folder}/merged"]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            return "vfs"
        subprocess.run(["umount", f"{folder}/merged"], check=True)
        return "overlay"


@dataclass(frozen=True)
class Ended:
    code: int
    output: str
    log: str


class Podman:
    def __init__(self) -> None:
        self._environ = lay_out()

    def run(self, *words: str | Path, within: float = 900, check: bool = True) -> Ended:
        ended = subprocess.run(
            words,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=within,
            check=False,
        )
        assert not check or ended.returncode == 0, f"{' '.join(map(str, words))}\n{ended.stdout}\n{ended.stderr}"
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    def build(self, tag: str = IMAGE, folder: Path = PROJECT, *options: str) -> None:
        """An image of the Dockerfile in a folder, out of Debian's own packages where its base is not there yet."""
        revision = self.run("git", "-C", PROJECT, "rev-parse", "HEAD").output.strip()
        with (HOME / "build.lock").open("w") as lock:  # a second process of the tests waits for the layers of the first
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.run("podman", "image", "exists", SLIM, check=False).code:
                self._debian()
            self.run(
                *("buildah", "bud", "--format", "docker", "--layers", "--pull-never"),
                *options,
                *("--build-arg", f"REVISION={revision}", "--tag", tag, folder),
            )

    def _debian(self) -> None:
        """Make the base out of Debian's packages, without what the published image lacks: archives, pages, languages."""
        root, archive = HOME / "rootfs", HOME / "rootfs.tar"
        self.run("rm", "-rf", root)
        self.run("debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", root)
        # This machine's authorities: a proxy's own may be among them.
        shutil.copy("/etc/ssl/certs/ca-certificates.crt", root / "usr/local/share/ca-certificates/machine.crt")
        self.run("chroot", root, "update-ca-certificates")
        for name in LEFT_OUT:
            self.run("find", root / name, "-not", "-type", "d", "-delete")  # a package may write into the folders
        self.run("find", root / "usr/share/doc", "-type", "f", "-not", "-name", "copyright", "-delete")
        (root / "etc/dpkg/dpkg.cfg.d/docker").write_text(DPKG)
        (root / "etc/apt/apt.conf.d/docker-clean").write_text(APT)
        self.run("tar", "-C", root, "-cf", archive, ".")
        self.run("podman", "import", archive, BASE)
        self.run("podman", "tag", BASE, SLIM)
        self.run("rm", "-rf", root, archive)

    def image(self) -> dict[str, object]:
        (found,) = json.loads(self.run("podman", "image", "inspect", IMAGE).output)
        return dict(found)


class Container:
    """A container of the image on the host's network, hardened as a cluster would have it; gone after the block."""

    def __init__(self, podman: Podman, name: str, given: Mapping[str, str], options: Sequence[str] = ()) -> None:
        self._podman = podman
        self.name = name
        variables = [word for pair in given.items() for word in ("--env", "=".join(pair))]
        self._options = [*HARDENED, *options, *variables]

    def start(self, *words: str) -> float:
        """Start it in the background; returns the seconds of the clock at that moment."""
        began = time.monotonic()
        options = ("--detach", "--name", self.name, "--network", "host", *self._options)
        self._podman.run("podman", "run", *options, IMAGE, *words)
        return began

    def execute(self, *words: str) -> Ended:
        """Run a command in it, while it runs."""
        return self._podman.run("podman", "exec", self.name, *words)

    def once(self, *words: str, network: str = "host", check: bool = True) -> Ended:
        """Run a command of it to its end."""
        return self._podman.run(
            *("podman", "run", "--rm", "--network", network, *self._options, IMAGE, *words), check=check
        )

    def stop(self) -> int:
        """As an orchestrator does: SIGTERM, and patience; returns the exit code."""
        self._podman.run("podman", "stop", "--time", "60", self.name)
        return int(self._podman.run("podman", "inspect", "--format", "{{.State.ExitCode}}", self.name).output)

    def healthcheck(self) -> int:
        return self._podman.run("podman", "healthcheck", "run", self.name, check=False).code

    def logs(self) -> str:
        return self._podman.run("podman", "logs", self.name).log

    def remove(self) -> None:
        self._podman.run("podman", "rm", "--force", self.name, check=False)
