"""The peers, and the virtual environment of each.

The environments are in ``.venv-peers`` below one folder. Torch and scikit-learn are installed once,
into an environment that all others share; each peer is then installed with the project's
constraints, so that all run with the same torch.
"""

import os
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
SHARED = ("torch", "numpy", "scikit-learn")


@dataclass(frozen=True)
class Peer:
    """A peer: its name, its file in ``loops``, its package, and its requirements.

    ``alone`` is installed without dependencies, because their pins exclude this torch.
    """

    name: str
    module: str
    package: str = ""
    needs: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

COMPOSER = (
    "requests",
    "tqdm",
    "torchvision==0.28.0",
    "py-cpuinfo",
    "importlib-metadata",
    "psutil",
    "torchmetrics",
    "pyyaml",
    "mosaicml-cli",
    "coolname",
)
"""The requirements that Composer imports; its own pins are for an older torch."""

PEERS = [
    Peer("plain PyTorch", "plain", "torch"),
    Peer("Stoker", "stoker", "", (*PROJECT["dependencies"], "h5py")),
    Peer("Lightning", "lightning", "lightning", ("lightning==2.6.6",)),
    Peer("Fabric", "fabric", "lightning", ("lightning==2.6.6",)),
    Peer("Accelerate", "accelerate", "accelerate", ("accelerate==1.15.0", "torchmetrics>=1.4")),
    Peer(
        "HF Trainer",
        "hf_trainer",
        "transformers",
        ("transformers==5.22.2", "accelerate==1.15.0"),
    ),
    Peer("Ignite", "ignite", "pytorch-ignite", ("pytorch-ignite==0.5.5", "tqdm")),
    Peer("MMEngine", "mmengine", "mmengine", ("mmengine==0.10.7", "setuptools<81")),
    Peer("Composer", "composer", "mosaicml", COMPOSER, ("mosaicml==0.32.1",)),
    Peer("Keras", "keras", "keras", ("keras==3.15.1",)),
    Peer("fastai", "fastai", "fastai", ("fastai==2.8.12",)),
    Peer("skorch", "skorch", "skorch", ("skorch==1.4.0",)),
]


class UnavailableError(Exception):
    """A peer cannot be installed, and why."""


def default_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stoker"


def python_of(peer: Peer, folder: Path, log: Callable[[str], None]) -> Path:
    """Return the Python of the peer's environment, which is created if needed."""
    base, place = folder / "torch", folder / peer.module
    _ensure(base, SHARED, (), None, log)
    _ensure(place, peer.needs, peer.alone, base, log)
    return place / "bin" / "python"


def install(python: Path, needs: tuple[str, ...]) -> None:
    """Install further packages into the environment of a peer."""
    _pip(python.parent.parent, *needs)


def version_of(peer: Peer, python: Path) -> str:
    """Return the version of its package; for Stoker, that of this checkout."""
    if not peer.package:
        import stoker

        return stoker.__version__
    script = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
    found = subprocess.run(
        [python, "-c", script, peer.package], capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


def _ensure(
    place: Path,
    needs: tuple[str, ...],
    alone: tuple[str, ...],
    base: Path | None,
    log: Callable[[str], None],
) -> None:
    """Create an environment with these packages, unless it exists with the same recipe."""
    version = sys.version.split()[0]
    recipe = "\n".join([version, *needs, "alone:", *alone, CONSTRAINTS.read_text()])
    recipe_file = place / "recipe"
    if recipe_file.exists() and recipe_file.read_text() == recipe:
        return
    log(f"creating the environment of {place.name}")
    shutil.rmtree(place, ignore_errors=True)
    venv.create(place, with_pip=False)
    if base is not None:
        (_packages(place) / "shared.pth").write_text(f"{_packages(base)}\n")
    if alone:
        _pip(place, "--no-deps", *alone)
    if needs:
        _pip(place, *needs)
    recipe_file.write_text(recipe)


def _packages(place: Path) -> Path:
    version = "python{}.{}".format(*sys.version_info[:2])
    return place / "lib" / version / "site-packages"


def _pip(place: Path, *needs: str) -> None:
    """Install with the pip of the Python that runs the driver."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    command += ["--python", str(place / "bin" / "python"), "install"]
    result = subprocess.run(
        [*command, "--constraint", str(CONSTRAINTS), *needs],
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
        reason = errors[0].removeprefix("ERROR: ") if errors else result.stderr.strip()[-200:]
        raise UnavailableError(reason)
