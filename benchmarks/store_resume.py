"""Train the digits example into an object store, kill it, and resume it with an empty disk.

    python benchmarks/store_resume.py [--azure]

It starts a local S3 server, or Azurite (installed by npm into build/azurite), trains once without a
pause and once with a SIGKILL in the middle, each time with a cache of its own, and compares the
weights that are in the store at the end.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from stoker.checkpoint import Checkpoints  # noqa: E402
from stoker.storage.blobs import Blobs  # noqa: E402
from support.stores import Azurite, S3Server, azure_environment, environment  # noqa: E402


def start(url: str, cache: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, str(ROOT / "examples/digits.py"), "--run-dir", url]
    env = os.environ | {"STOKER_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*command, "--epochs", "6"], env=env, stdout=subprocess.DEVNULL)


def newest(url: str) -> str:
    return max((path.name for path in Checkpoints(f"{url}/checkpoints").list()), default="")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--azure", action="store_true", help="use Azurite instead of S3")
    options = parser.parse_args()
    server = Azurite(ROOT / "build/azurite") if options.azure else S3Server()
    os.environ |= azure_environment(server) if options.azure else environment(server.url)
    base = "az://bucket/runs" if options.azure else "s3://bucket/runs"
    try:
        with tempfile.TemporaryDirectory() as folder:
            return compare(base, Path(folder))
    finally:
        server.kill()


def compare(base: str, folder: Path) -> int:
    os.environ["STOKER_CACHE"] = str(folder / "looking")
    straight, killed = f"{base}/straight", f"{base}/killed"
    assert start(straight, folder / "first").wait() == 0
    print(f"trained into {straight}: {newest(straight)}")
    process = start(killed, folder / "second")
    while process.poll() is None and newest(killed) < "step-00000090":
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was over before it could be killed"
    print(f"killed with {newest(killed)} in {killed}")
    assert start(killed, folder / "third").wait() == 0
    print(f"resumed with an empty disk: {newest(killed)}")
    weights = [Blobs(url).get("model.safetensors") for url in (straight, killed)]
    same = weights[0] == weights[1]
    print("the weights are the same, bit for bit" if same else "the weights DIFFER")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
