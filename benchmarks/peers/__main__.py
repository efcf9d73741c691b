"""Compare Stoker with other trainers: the cost of a step, a save, a start and a complete job.

    python benchmarks/peers                                   the cost of steps, ten minutes
    python benchmarks/peers --scenarios k,l                   realistic work, and restarts
    python benchmarks/peers --scenarios a,b --only plain,stoker --here
    python benchmarks/peers --write                           and write docs/benchmarks

The first run creates an environment for each peer, which takes longer. Progress goes to standard
error, the tables to standard output. Ctrl-C ends it and prints the results so far.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import page
import publish
from envs import PEERS, ROOT, Peer, UnavailableError, default_folder, python_of, version_of
from process import HERE, Started, Worker
from scenarios import LETTERS, SCENARIOS, Scenario

KEYS = sorted({*LETTERS, *(scenario.key for scenario in SCENARIOS)})
OF_STEPS = ",".join(sorted({one.letter for one in SCENARIOS if one.page == "steps"}))
AGAIN = Peer("plain PyTorch again", "plain", "torch")
COMMAND = Peer("`stoker train`", "stoker", "")

SAVE_EVERY = 10.0
FOR_STEPS = 0.4  # share of the minutes; the rest is for saves, memory and new processes


def log(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def names(given: str, known: list[str], kind: str) -> list[str]:
    chosen = [name.strip() for name in given.split(",")] if given else known
    for name in chosen:
        if name not in known:
            raise SystemExit(f"{name!r} is not a {kind}: choose from {', '.join(known)}")
    return chosen


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python benchmarks/peers", description=(__doc__ or "").splitlines()[0]
    )
    known = [peer.module for peer in PEERS]
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds of (a)-(e), (i)")
    parser.add_argument("--fresh-rounds", type=int, default=3, help="rounds of (f) and (j)")
    parser.add_argument(
        "--minutes", type=float, default=12, help="time limit; rounds that do not fit are left out"
    )
    parser.add_argument("--steps", type=int, default=400, help="steps in a round")
    parser.add_argument("--memory-steps", type=int, default=8_000, help="steps of (h)")
    parser.add_argument("--only", default="", metavar="PEER,…", help=", ".join(known))
    parser.add_argument("--scenarios", default="", metavar="a,b,…", help=", ".join(KEYS))
    parser.add_argument("--envs", type=Path, default=default_folder(), help="their folder")
    parser.add_argument("--here", action="store_true", help="create none and use this Python")
    parser.add_argument("--page", type=Path, default=ROOT / "docs/benchmarks/steps.md")
    parser.add_argument("--write", action="store_true", help="write the page")
    parser.add_argument("--json", type=Path, help="keep every answer in this file")
    parser.add_argument("--merge", type=Path, help="add the other scenarios of such a file")
    options = parser.parse_args()
    options.only = names(options.only, known, "peer")
    options.scenarios = names(options.scenarios or OF_STEPS, KEYS, "scenario")
    return options


class Comparison:
    """All workers and their answers."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.peers = [peer for peer in PEERS if peer.module in options.only]
        chosen = {*options.scenarios}
        self.scenarios = [s for s in SCENARIOS if chosen & {s.letter, s.key}]
        self.workers: dict[str, Worker] = {}
        self.pythons: dict[str, Path] = {}
        self._began = self._saved = time.monotonic()
        before = json.loads(options.merge.read_text()) if options.merge else {}
        self.found: dict[str, Any] = {
            "command": shlex.join(["python", "benchmarks/peers", *shown(sys.argv[1:])]),
            "machine": publish.machine(),
            "load": os.getloadavg()[0],
            "steps": options.steps,
            "memory_steps": options.memory_steps,
            "environments": not options.here,
            "rounds_done": {"steps": 0, "fresh": 0},
            "interrupted": True,
            "minutes": 0.0,
            "unavailable": {},
            "versions": {},
            "answers": {},
        }
        if before:
            mine = {scenario.key for scenario in self.scenarios}
            kept = {key: one for key, one in before["answers"].items() if key not in mine}
            command = f"{before['command']}\n{self.found['command']}"
            steps = options.memory_steps if "h" in mine else before["memory_steps"]
            now = {"answers": kept, "command": command, "memory_steps": steps, "interrupted": True}
            load = {"load": max(before["load"], self.found["load"])}
            self.found |= before | now | load
        self._minutes_before = self.found["minutes"]

    def run(self) -> None:
        self.prepare()
        self._began = time.monotonic()
        lanes: list[tuple[str, Callable[[list[Scenario]], None]]] = [
            ("steps", self.steps),
            ("alone", self.alone),
            ("parallel", self.parallel),
            ("fresh", self.fresh),
        ]
        for lane, act in lanes:
            scenarios = [scenario for scenario in self.scenarios if scenario.lane == lane]
            if scenarios:
                act(scenarios)
        self.found["interrupted"] = False

    # Environments and workers

    def prepare(self) -> None:
        for peer in self.peers:
            try:
                self.pythons[peer.name] = python = self.python(peer)
                self.found["versions"][peer.name] = version_of(peer, python)
            except UnavailableError as error:
                log(f"{peer.name} cannot be installed: {error}")
                self.found["unavailable"][peer.name] = str(error)

    def python(self, peer: Peer) -> Path:
        if self.options.here:
            return Path(sys.executable)
        return python_of(peer, self.options.envs / ".venv-peers", log)

    def start(self, peer: Peer) -> None:
        """Start a worker, import its peer and run some steps."""
        if peer.name in self.workers or peer.name in self.found["unavailable"]:
            return
        log(f"starting {peer.name}")
        timeout = max(300.0, self.options.memory_steps * 0.02)  # for 20 ms a step
        worker = Worker(self.pythons[peer.name], peer.module, timeout)
        hello = worker.hello()
        if "error" in hello:
            self.found["unavailable"][peer.name] = hello["error"]
            worker.kill()
            return
        self.workers[peer.name] = worker
        worker.request(what="steps", run="fit", steps=50)
        worker.request(what="settle")

    def start_all(self) -> list[Peer]:
        for peer in self.peers:
            self.start(peer)
        return [peer for peer in self.peers if peer.name in self.workers]

    # How scenarios run

    def steps(self, scenarios: list[Scenario]) -> None:
        peers = self.start_all()
        if any(peer.module == "plain" for peer in peers):
            self.pythons[AGAIN.name] = self.pythons["plain PyTorch"]
            self.start(AGAIN)
            peers.insert(1, AGAIN)
        core = max(os.sched_getaffinity(0))
        for number in self.rounds(self.options.rounds, FOR_STEPS):
            for scenario in scenarios:
                log(f"round {number} of {self.options.rounds}: ({scenario.key}) {scenario.title}")
                for peer in self.remaining(scenario, peers):
                    self.keep(scenario, peer, self.request(peer, scenario, core=core))
            self.found["rounds_done"]["steps"] = number

    def alone(self, scenarios: list[Scenario]) -> None:
        peers = self.start_all()
        for scenario in scenarios:
            for number in range(1, scenario.rounds + 1):
                log(f"round {number} of {scenario.rounds}: ({scenario.key}) {scenario.title}")
                for peer in self.remaining(scenario, peers):
                    self.keep(scenario, peer, self.request(peer, scenario))

    def parallel(self, scenarios: list[Scenario]) -> None:
        """Run on all cores, because no times are compared here."""
        peers = self.start_all()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for scenario in scenarios:
                log(f"({scenario.key}) {scenario.title}")
                answers = pool.map(lambda peer, s=scenario: self.request(peer, s), peers)
                for peer, answer in zip(peers, answers, strict=True):
                    self.keep(scenario, peer, answer)

    def fresh(self, scenarios: list[Scenario]) -> None:
        self.close()
        for number in self.rounds(self.options.fresh_rounds, 1.0):
            for scenario in scenarios:
                of = self.options.fresh_rounds
                log(f"round {number} of {of}: ({scenario.key}) {scenario.title}")
                peers = list(self.peers)
                if "plain PyTorch" in self.pythons:
                    self.pythons[AGAIN.name] = self.pythons["plain PyTorch"]
                    peers.insert(1, AGAIN)
                if has_config(scenario) and "Stoker" in self.pythons:
                    peers.insert([peer.module for peer in peers].index("stoker") + 1, COMMAND)
                for peer in self.remaining(scenario, peers):
                    if peer.name not in self.found["unavailable"]:
                        self.keep(scenario, peer, self.once(peer, scenario))
            self.found["rounds_done"]["fresh"] = number

    def rounds(self, most: int, share: float) -> Iterator[int]:
        """Yield round numbers, as long as another round fits into that share of the minutes."""
        until = self._began + share * 60 * self.options.minutes
        for number in range(1, most + 1):
            began = time.monotonic()
            yield number
            now = time.monotonic()
            if now + (now - began) > until and number < most:
                log(f"no time for another round after {number} of {most}")
                return

    def once(self, peer: Peer, scenario: Scenario) -> dict[str, Any]:
        """Return the answer of a new process, with its time from the command on."""
        if scenario.request["what"] == "recover":
            return self.recovered(peer, scenario.request)
        if peer is COMMAND:
            return trained_by_command(self.pythons["Stoker"], scenario.request["name"])
        worker = Worker(self.pythons[peer.name], peer.module)
        try:
            hello = worker.hello()
            if "error" in hello:
                return hello
            answer = worker.request(**scenario.request)
            answer["took_s"] = worker.end() - worker.began
            answer["processor_s"] = worker.processor()
        finally:
            worker.kill()
        answer["import_s"] = hello["import"]["peer"]
        if "first" in answer:
            answer["first_s"] = answer["first"] - worker.began
        return answer

    def recovered(self, peer: Peer, request: dict[str, Any]) -> dict[str, Any]:
        """Return the time from a restart until the step is done in which the first was killed."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
            for kill in (True, False):
                began = time.time()
                worker = Worker(self.pythons[peer.name], peer.module)
                try:
                    hello = worker.hello()
                    if "error" in hello:
                        return hello
                    answer = worker.request(**request, place=place, kill=kill)
                finally:
                    worker.kill()
                if "absent" in answer:
                    return answer
        if "done" in answer:
            answer["recover_s"] = answer["done"] - began
        return answer

    def remaining(self, scenario: Scenario, peers: list[Peer]) -> Iterator[Peer]:
        """Yield the peers that have not failed before."""
        for peer in peers:
            before = self.found["answers"].get(scenario.key, {}).get(peer.name, [{}])[-1]
            if "error" not in before and "absent" not in before:
                yield peer

    def request(self, peer: Peer, scenario: Scenario, **more: Any) -> dict[str, Any]:
        sizes = {
            name.removeprefix("memory_"): getattr(self.options, name) for name in scenario.sizes
        }
        if peer.name not in self.workers:
            return {"error": "its process has ended"}
        answer = self.workers[peer.name].request(**scenario.request, **sizes, **more)
        if not self.workers[peer.name].alive:
            del self.workers[peer.name]
            self.start(peer)
        return answer

    def keep(self, scenario: Scenario, peer: Peer, answer: dict[str, Any]) -> None:
        if "error" in answer:
            log(f"{peer.name} failed: {answer['error']}")
        of_peers = self.found["answers"].setdefault(scenario.key, {})
        of_peers.setdefault(peer.name, []).append(answer)
        if time.monotonic() > self._saved + SAVE_EVERY:
            self.save()

    # At the end

    def save(self) -> None:
        self._saved = time.monotonic()
        minutes = (time.monotonic() - self._began) / 60
        self.found["minutes"] = self._minutes_before + minutes
        if self.options.json is not None:
            self.options.json.write_text(json.dumps(self.found))

    def close(self) -> None:
        for worker in self.workers.values():
            worker.kill()
        self.workers.clear()

    def text(self) -> str:
        return page.write(self.found, SCENARIOS, self.peers)


def has_config(scenario: Scenario) -> bool:
    return (HERE / f"{scenario.request.get('name')}.yaml").exists()


def trained_by_command(python: Path, name: str) -> dict[str, Any]:
    """Train the same job from a config with `stoker train`."""
    config = HERE / f"{name}.yaml"
    with tempfile.TemporaryDirectory() as folder:
        job = Started([str(python), "-m", "stoker", "train", str(config)], cwd=folder)
        code = job.wait(300)
        seconds = {"took_s": time.time() - job.began, "processor_s": job.processor()}
        if code != 0:
            job.show()
            return {"error": f"it exited with code {code}"}
        read = [str(python), str(HERE / "read_result.py"), name, f"{folder}/runs/{name}"]
        found: dict[str, Any] = json.loads(subprocess.check_output(read))
    return {**found, **seconds}


def shown(given: list[str]) -> list[str]:
    """Return the arguments without those that name paths on this machine."""
    places = ("--envs", "--page", "--json", "--merge")
    return [
        argument
        for before, argument in zip(["", *given], given, strict=False)
        if before not in places and not argument.startswith(places)
    ]


def main() -> None:
    options = arguments()
    comparison = Comparison(options)
    try:
        comparison.run()
    except KeyboardInterrupt:
        log("interrupted: these are the results so far")
    finally:
        comparison.close()
        comparison.save()
        write(comparison, options)


def write(comparison: Comparison, options: argparse.Namespace) -> None:
    """Print the page of steps, if it was measured, and the tables of other pages."""
    found = comparison.found
    if any(scenario.page == "steps" for scenario in comparison.scenarios):
        text = comparison.text()
        print(text)
        if options.write:
            options.page.write_text(text)
            log(f"written: {options.page}")
        if options.write and not options.here:
            publish.store("steps", page.steps_record(found, SCENARIOS), found["command"])
    for name, tables in page.other_tables(found, SCENARIOS).items():
        publish.finish(name, tables, write=options.write)


if __name__ == "__main__":
    main()
