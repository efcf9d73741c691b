"""Measure what the guarantees of a run cost on realistic work: identity, state, heartbeat, lease.

    python benchmarks/safety.py [images gpt table] [--rounds 2] [--seconds 25] [--write]

Each job trains with the default hooks, a run folder and a `Heartbeat` in a new process, for some
seconds. Timers around the guarantees, which `stoker profile` prints too, give their share of the
run: wall time where the loop waits for them, CPU time of their threads otherwise. As a check, the
processor time of the job is compared with that of the same job without any of them, in alternating
processes.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import publish

HERE = Path(__file__).parent
JOBS = {
    "images": "a residual convnet on augmented images with two workers",
    "gpt": "a transformer of 11 million parameters on text",
    "table": "an MLP on a million rows in memory",
}
PARTS = ("identity", "hidden state", "heartbeat", "lease")


def train(name: str, seconds: float, guarded: bool) -> dict[str, Any]:
    """Train one job in this process."""
    sys.path.insert(0, str(HERE / "peers"))
    from importlib import import_module

    import torch
    from work import Watch

    from stoker import Engine, Every, Hook, Trainer, hooks
    from stoker.core.timers import guards

    class Stop(Hook):
        """Stop after some seconds, in the middle of an epoch."""

        def after_step(self, run: Any) -> None:
            seen["steps"] += 1
            if seen["steps"] == 1:
                seen["first"] = time.perf_counter() - began
            if time.perf_counter() - began > seconds:
                run.stop("enough")

    seen: dict[str, float] = {"steps": 0}
    torch.set_num_threads(1)
    task = import_module(f"{name}_job").task(Watch())
    if not guarded:
        switch_off()
    heartbeat = hooks.Heartbeat() if guarded else hooks.Heartbeat(after=None)
    used = [*hooks.default(progress=False), heartbeat, Stop()]
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(task.model, task.optimizer, task.criterion)
        trainer = Trainer(engine, used, run_dir=f"{folder}/run")
        began, cpu = time.perf_counter(), time.process_time()
        trainer.fit(task.data, task.val_data, epochs=1000, validate_every=Every(1, "ep"))
        took, used_cpu = time.perf_counter() - began, time.process_time() - cpu
    times = {part: {"calls": t.count, "seconds": t.total} for part, t in guards.items()}
    return {"took": took, "cpu": used_cpu, **seen, "guards": times}


def switch_off() -> None:
    """Switch off what has no setting of its own."""
    from stoker import Trainer
    from stoker.core.user_state import UserState
    from stoker.storage.lock import Lock

    Trainer._identity = lambda *_: None  # type: ignore[method-assign, assignment]
    UserState.begin = lambda *_: None  # type: ignore[method-assign, assignment]
    UserState.report_unsavable = lambda _: None  # type: ignore[method-assign]
    UserState.capture = lambda _: []  # type: ignore[method-assign]
    Lock.acquire = lambda _: None  # type: ignore[method-assign]


def in_process(name: str, seconds: float, guarded: bool) -> dict[str, Any]:
    command = [sys.executable, __file__, name, "--seconds", str(seconds), "--train"]
    out = subprocess.check_output([*command, "on" if guarded else "off"], text=True)
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def measure(name: str, rounds: int, seconds: float) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {"on": [], "off": [], "on again": []}
    for number in range(1, rounds + 1):
        for kind, answers in found.items():
            print(f"{name}, round {number} of {rounds}: {kind}", file=sys.stderr, flush=True)
            answers.append(in_process(name, seconds, kind != "off"))
    return found


def per_step(answers: list[dict[str, Any]]) -> list[float]:
    return [one["cpu"] / one["steps"] for one in answers]


def ratio(mine: list[float], theirs: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(mine, theirs, strict=True))


def table(name: str, found: dict[str, list[dict[str, Any]]]) -> publish.Table:
    guarded = [*found["on"], *found["on again"]]
    rows, shares, start = [], dict.fromkeys(PARTS, 0.0), 0.0
    for timer in guarded[0]["guards"]:
        calls = statistics.median(one["guards"][timer]["calls"] for one in guarded)
        cost = statistics.median(one["guards"][timer]["seconds"] for one in guarded)
        share = statistics.median(one["guards"][timer]["seconds"] / one["took"] for one in guarded)
        shares[timer.split(",")[0]] += share
        start += cost if timer == "identity" or timer.endswith("at the start") else 0.0
        rows.append([timer, f"{calls:.0f}", f"{cost * 1e3:.1f}", f"{share:.2%}"])
    total = sum(shares.values())
    rows.append(["together", "", f"{total * guarded[0]['took'] * 1e3:.1f}", f"{total:.2%}"])
    compared = ratio(per_step(found["on"]), per_step(found["off"]))
    noise = ratio(per_step(found["on again"]), per_step(found["on"]))
    text = (
        f"{JOBS[name].capitalize()}, {guarded[0]['took']:.0f} s and {guarded[0]['steps']} steps "
        f"with the default hooks. At the start they take {start:.2f} s together. Processor time "
        f"per step, with them compared with without: {compared:.3f} ×."
    )
    highest = max(shares, key=lambda part: shares[part])
    met = total <= 0.02 and shares[highest] <= 0.01 and start <= 0.3
    reading = f"{total:.1%} together, most {highest} {shares[highest]:.1%}, start {start:.2f} s"
    target = "each ≤ 1 %, together ≤ 2 %, start ≤ 0.3 s"
    return publish.Table(
        name.capitalize() if name != "gpt" else "Transformer",
        text,
        ["calls", "ms in all", "share of the run"],
        rows,
        f"processor time of the same job compared with itself {noise:.3f} ×",
        {part: 100 * share for part, share in shares.items()},
        "% of the run",
        1.0,
        [publish.Finding(f"Safety, {name}", reading, target, met)],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("jobs", nargs="*", choices=[*JOBS, []], default=[])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=25.0)
    parser.add_argument("--train", choices=["on", "off"], help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks/safety.md")
    options = parser.parse_args()
    if options.train is not None:
        print(json.dumps(train(options.jobs[0], options.seconds, options.train == "on")))
        return
    jobs = options.jobs or [*JOBS]
    tables = [table(name, measure(name, options.rounds, options.seconds)) for name in jobs]
    publish.finish("safety", tables, write=options.write)


if __name__ == "__main__":
    main()
