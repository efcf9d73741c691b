"""Kill a training hundreds of times, resume it, and check that it ends at the same bits.

The training is tests/support/killable_run.py: dropout, batch norm, noise in the data,
accumulation, a schedule, clipping, EMA, early stopping, the best weights, two writers. Each proof
kills at different moments.

    python benchmarks/soak.py [--kills 500]
"""

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from stoker.testing import prove  # noqa: E402
from support.killable_run import train  # noqa: E402

KILLS_PER_PROOF = 5


def one_training(run_dir: Path) -> None:
    train(run_dir)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=500)
    options = parser.parse_args()
    killed = proofs = 0
    while killed < options.kills:
        with tempfile.TemporaryDirectory() as folder:
            verdict = prove(one_training, Path(folder), kills=KILLS_PER_PROOF, seed=proofs)
        killed, proofs = killed + len(verdict.kills), proofs + 1
        if not verdict.same:
            print(f"seed {proofs - 1}\n{verdict.text()}")
            return 1
        print(f"{killed} kills in {proofs} proofs, all the same bits", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
