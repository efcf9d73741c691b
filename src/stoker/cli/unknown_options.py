"""Options that a command does not have, answered with what works instead."""

import re
from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from stoker.core.errors import did_you_mean

_CONFIG = ("-c", "--config", "--cfg", "--config-file", "--config-path", "--config-name", "--conf")
_PROCESSES = (
    *("--gpus", "--num-gpus", "--devices", "--ngpus", "--n-gpu", "--nprocs", "--nproc-per-node"),
    *("--num-processes", "--num-procs", "--world-size", "--np", "-n", "-np"),
)
_OTHERS = {
    **dict.fromkeys(
        ("--wandb", "--logger", "--log-with", "--report-to", "--tensorboard"),
        "; use '+hooks={type: Write, _args_: [{_target_: stoker.events.TensorBoard}]}'",
    ),
    **dict.fromkeys(
        ("--nnodes", "--num-nodes", "--node-rank", "--rdzv-endpoint", "--master-addr"),
        "; start it with torchrun and '--on env'",
    ),
    **dict.fromkeys(
        ("--verbose", "-v", "--debug"), ": progress is shown unless '--quiet' is given"
    ),
    **dict.fromkeys(("--do-train", "--train"), ": 'stoker train' always trains"),
    **dict.fromkeys(("--local-rank", "--rank"), "; use '--on env', which reads LOCAL_RANK"),
}
"""Options of other commands without an override that says the same."""
_NEGATIVE_NUMBER = re.compile(r"-\.?\d.*")

Override = Callable[[str, str | None, bool], str]
"""Returns the override to use instead of a name and a value, as the end of a message."""


class Unknown(NamedTuple):
    """An option that a command does not have, and its value if one was given."""

    option: str
    value: str | None

    @property
    def is_config(self) -> bool:
        """Whether it names the config, which is an argument of its own."""
        return self.value is not None and _dashed(self.option) in _CONFIG


def separate(argv: Sequence[str], known: Collection[str]) -> tuple[list[str], list[Unknown]]:
    """Return the words of a command line without unknown options, and these options."""
    words: list[str] = []
    unknown: list[Unknown] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--":
            words += [word, *rest]
            break
        if not _is_unknown(word, known):
            words.append(word)
            continue
        option, equals, value = word.partition("=")
        if not equals and rest and _is_value(rest[0], option):
            equals, value = " ", rest.pop(0)
        unknown.append(Unknown(option, value if equals else None))
        if unknown[-1].is_config:
            words.append(value)
    return words, unknown


def fault(unknown: Unknown, command: str, known: Collection[str], override: Override) -> str:
    """Return one sentence about an unknown option, with what works instead."""
    option, value = unknown
    text = f"'stoker {command}' has no option {option}"
    if unknown.is_config:
        return f"{text}: the config is an argument of its own: use 'stoker {command} {value}'"
    if _dashed(option) in _PROCESSES and "--nproc" in known and (value or "").isdigit():
        return f"{text}; use '--nproc {value}'"
    name = option.lstrip("-")
    matches = get_close_matches(_dashed(option), known, n=1, cutoff=0.8)
    return text + (
        override(name, value, False)
        or (f"; did you mean '{matches[0]}'?" if matches else "")
        or _OTHERS.get(_dashed(option))
        or override(name, value, True)
        or did_you_mean(option, known)
        or listed(command)
    )


def listed(command: str) -> str:
    """Return where the options of a command are listed, as the end of a message."""
    return f" ('stoker {command} --help' lists its options)"


def _is_unknown(word: str, known: Collection[str]) -> bool:
    if not word.startswith("-") or word == "-" or _NEGATIVE_NUMBER.fullmatch(word):
        return False
    return word.partition("=")[0] not in known and (word.startswith("--") or word[:2] not in known)


def _is_value(word: str, option: str) -> bool:
    """Return whether a word after an unknown option is its value."""
    if word.endswith((".yaml", ".yml", ".py")):
        return _dashed(option) in _CONFIG
    is_other = word.startswith(("-", "+", "~")) or "=" in word
    return not is_other or _NEGATIVE_NUMBER.fullmatch(word) is not None


def _dashed(option: str) -> str:
    return option.lower().replace("_", "-")
