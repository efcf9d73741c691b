"""The model card: the model, how it was trained, and how to load it."""

from collections.abc import Mapping
from typing import Any

from stoker.report.facts import Facts
from stoker.rundir import files
from stoker.storage import format_size

_PARTS = {
    "model": "model",
    "criterion": "criterion",
    "optimizer": "optimizer",
    "lr_scheduler": "learning rate schedule",
    "train_loader": "training data",
    "val_loader": "validation data",
}
_HOW = ("seed", "precision", "micro_batch", "accumulate", "global_batch", "clip_norm")


def model_card(facts: Facts) -> list[list[str]]:
    """Return the rows of the card, without those that nothing is known of."""
    rows = []
    for key, title in _PARTS.items():
        if call := _call(facts.settings, key):
            rows.append([title, call])
    how = [(name, facts.settings.get(f"run.{name}")) for name in _HOW]
    if settings := ", ".join(f"{name} {value}" for name, value in how if value is not None):
        rows.append(["training", settings])
    last = facts.last
    if "step" in last:
        counted = {"steps": "step", "epochs": "epoch", "samples": "samples"}
        counts = [f"{last[key]:,.0f} {name}" for name, key in counted.items() if key in last]
        rows.append(["trained for", ", ".join(counts)])
    if facts.weights is not None:
        w = facts.weights
        numbers = f"{w.count:,} in {w.tensors} tensors of {', '.join(w.dtypes) or 'nothing'}"
        rows.append(["weights", f"{numbers} ({format_size(w.size)})"])
        path = str(facts.path / files.WEIGHTS)
        rows.append(["load them with", f"stoker.load_weights(model, {path!r})"])
    return rows + _environment(facts)


def _call(settings: Mapping[str, Any], key: str) -> str:
    """Return a node of the config as a call: the target and its plain arguments."""
    target = settings.get(f"{key}._target_", settings.get(f"{key}.type", settings.get(key)))
    if not isinstance(target, str):
        return ""
    inside = f"{key}."
    own = {name.removeprefix(inside): v for name, v in settings.items() if name.startswith(inside)}
    plain = [
        f"{name}={value}"
        for name, value in own.items()
        if not name.endswith(("_target_", "type")) and isinstance(value, str | int | float)
    ]
    dataset = own.get("dataset._target_")
    data = f" of {dataset}" if isinstance(dataset, str) else ""
    return f"{target}({', '.join(plain)}){data}"


def _environment(facts: Facts) -> list[list[str]]:
    if not facts.environments:
        return []
    env = facts.environments[-1]
    packages = env.get("packages")
    named = packages.items() if isinstance(packages, dict) else ()
    versions = [f"{name} {version}" for name, version in named if isinstance(version, str)]
    rows = [["made with", ", ".join([f"Python {env.get('python')}", *versions])]]
    system = env.get("system")
    if isinstance(system, dict):
        accelerators = system.get("accelerators") or "no accelerator"
        where = f"{system.get('platform')}, {system.get('cpus')} CPUs, {accelerators}"
        rows.append(["on", where])
    git = env.get("git")
    if isinstance(git, dict):
        changed = ", with uncommitted changes" if git.get("dirty") else ""
        rows.append(["code", f"commit {git.get('commit')}{changed}"])
    return rows
