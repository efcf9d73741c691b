"""What is compared: each scenario, what it asks of the workers, and how its table reads."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

Answer = dict[str, Any]
Answers = dict[str, list[Answer]]
"""The answers of each peer, round by round."""

Row = list[str]


@dataclass(frozen=True)
class Scenario:
    """One table.

    ``lane`` says how it runs: "steps" in interleaved rounds on one core, "alone" in ``rounds`` of
    their own and on all cores, "beside" once per peer and two at a time, "fresh" in interleaved
    rounds of new processes.
    """

    key: str
    title: str
    text: str
    lane: str
    request: dict[str, Any]
    columns: tuple[str, ...]
    row: Callable[[list[Answer], list[Answer]], Row]
    order: str
    sizes: tuple[str, ...] = field(default=())
    rounds: int = 1

    @property
    def letter(self) -> str:
        return self.key[0]


def of(name: str, answers: list[Answer]) -> list[float]:
    return [answer[name] for answer in answers]


def times(name: str, answers: list[Answer], plain: list[Answer]) -> float:
    """How many times as much as the plain loop in the same round; the median of the rounds.

    A machine that is slower for some minutes is so for both.
    """
    pairs = zip(of(name, answers), of(name, plain), strict=False)
    return median(mine / theirs for mine, theirs in pairs)


# Rows: what the peer answered, what the plain loop answered


def sameness(answers: list[Answer], plain: list[Answer]) -> str:
    """Whether the peer really did the same training."""
    mine, theirs = answers[-1]["weights"], plain[-1]["weights"]
    if mine == theirs:
        return "same bits"
    if isinstance(mine, str):
        return "other bits"
    return f"differ by {max(abs(a - b) for a, b in zip(mine, theirs, strict=True)):.0e}"


def result(answers: list[Answer], plain: list[Answer]) -> str:
    """The number that came out, beside that of the plain loop."""
    mine, theirs = answers[-1]["result"], plain[-1]["result"]
    if mine is None:
        return "by batch only"
    if mine == theirs:
        return "same"
    close = abs(mine - theirs) <= 1e-5 * max(1.0, abs(theirs))
    return f"within {abs(mine - theirs):.0e}" if close else f"{mine:.4f}, not {theirs:.4f}"


def step_row(answers: list[Answer], plain: list[Answer]) -> Row:
    mine, theirs = of("us", answers), of("us", plain)
    over = median(a - b for a, b in zip(mine, theirs, strict=False))
    return [
        f"{median(mine):.0f}",
        f"{min(mine):.0f}",
        f"{over:+.0f}",
        f"{times('us', answers, plain):.2f}",
        f"{median(of('beside_ms', answers)):.0f}",
    ]


def train_row(answers: list[Answer], plain: list[Answer]) -> Row:
    return [*step_row(answers, plain), sameness(answers, plain)]


def accuracy_row(answers: list[Answer], plain: list[Answer]) -> Row:
    return [*train_row(answers, plain), result(answers, plain)]


def look_row(answers: list[Answer], plain: list[Answer]) -> Row:
    return [*step_row(answers, plain), result(answers, plain)]


def start_row(answers: list[Answer], plain: list[Answer]) -> Row:
    imports, firsts = of("import_s", answers), of("first_s", answers)
    return [
        f"{median(imports):.2f}",
        f"{median(firsts):.2f}",
        f"{min(firsts):.2f}",
        f"{times('first_s', answers, plain):.2f}",
    ]


def stall_row(answers: list[Answer], plain: list[Answer]) -> Row:
    stops = of("blocked_ms", answers)
    return [
        f"{median(stops):.0f}",
        f"{min(stops):.0f}",
        f"{times('blocked_ms', answers, plain):.2f}",
        f"{median(of('cost_ms', answers)):.0f}",
        f"{answers[-1]['mb']:.0f}",
        f"{median(of('step_ms', answers)):.1f}",
        sameness(answers, plain),
    ]


def resume_row(answers: list[Answer], plain: list[Answer]) -> Row:
    last = answers[-1]
    ends = "yes" if last["same"] else f"no, differ by {last['difference']:.0e}"
    return [ends, str(last["calls"]), sameness(answers, plain)]


def memory_row(answers: list[Answer], plain: list[Answer]) -> Row:
    last = answers[-1]
    return [
        f"{last['growth_mb']:.1f}",
        f"{last['growth_mb'] / last['over_steps'] * 200_000:.0f}",
        f"{last['us']:.0f}",
        f"{last['bytes'] / 1e6:.1f}",
        sameness(answers, plain),
    ]


def job_row(answers: list[Answer], plain: list[Answer]) -> Row:
    took, used = of("took_s", answers), of("processor_s", answers)
    return [
        f"{median(took):.2f}",
        f"{min(took):.2f}",
        f"{times('took_s', answers, plain):.2f}",
        f"{median(used):.2f}",
        f"{times('processor_s', answers, plain):.2f}",
        f"{answers[-1]['result']:.1%}",
        sameness(answers, plain),
    ]


JOB = ("seconds", "fastest", "× plain", "of processor", "× plain's", "accuracy", "weights")
STEP = ("µs per step", "fastest", "over plain, µs", "× plain", "beside, ms")


def steps(
    key: str,
    title: str,
    text: str,
    run: str,
    row: Callable[[list[Answer], list[Answer]], Row] = train_row,
    extra: tuple[str, ...] = ("weights",),
    **more: Any,
) -> Scenario:
    request = {"what": "steps", "run": run, **more}
    return Scenario(key, title, text, "steps", request, (*STEP, *extra), row, "us", ("steps",))


SCENARIOS = [
    steps("a", "Nothing on, ready batches", "A list of batches, everything else off.", "fit"),
    steps(
        "b",
        "Nothing on, a DataLoader",
        "The same batches from a `DataLoader` over a `TensorDataset`, in order, without workers.",
        "fit",
        data="loader",
    ),
    steps(
        "c",
        "The defaults of each",
        "Bars, logs and checkpoints as each one has them when nothing is said, with a folder to "
        "write to and a terminal to draw on. Only what changes the mathematics (clipping, a "
        "schedule of the rate) is off. Plain PyTorch is the bare loop.",
        "defaults",
    ),
    steps(
        "d",
        "Accuracy on every step",
        "Nothing else on; the metric that each one has or recommends. Plain PyTorch compares and "
        "adds by hand.",
        "accuracy",
        accuracy_row,
        ("weights", "accuracy"),
    ),
    *(
        steps(
            f"e{count}",
            f"{count} idle callback{'s' * (count > 1)}",
            "Callbacks that override nothing. Plain PyTorch is the bare loop.",
            "callbacks",
            arguments=[count],
        )
        for count in (1, 10, 100)
    ),
    Scenario(
        "f",
        "Import and first step",
        "Seconds in fresh processes: to import the peer after torch, and from the command to the "
        "end of the first step with nothing on.",
        "fresh",
        {"what": "first_step"},
        ("import, s", "first step, s", "fastest", "× plain"),
        start_row,
        "first_s",
    ),
    Scenario(
        "g1",
        "How long a save stops the loop",
        "A model of 4.2 million weights with Adam, saved every 10 steps: by how much the step "
        "with a save is longer than the others, and what a save costs in all, the steps that are "
        "slower because of it included. Medians of five rounds of five saves, the first of which "
        "does not count, on all cores.",
        "alone",
        {"what": "stall", "saves": 5},
        ("stops, ms", "fastest", "× plain", "costs, ms", "on disk, MB", "a step, ms", "weights"),
        stall_row,
        "blocked_ms",
        rounds=5,
    ),
    Scenario(
        "g2",
        "Killed and started again",
        "Three epochs of 20 steps with shuffling and dropout, a save every 7 steps, killed with "
        "SIGKILL in step 33, started again: the same bits as without the kill? In the documented "
        "way of each. After the save at step 28 there are 32 steps left; whoever writes beside the "
        "training may have to go back to the save before it. Plain PyTorch saves random numbers "
        "and the place in the data by hand. Whoever shuffles in an order of his own has other "
        "weights without a kill, too.",
        "beside",
        {"what": "resume", "kill_at": 33, "every": 7},
        ("same bits after a kill", "steps after it", "weights without a kill"),
        resume_row,
        "difference",
    ),
    Scenario(
        "h",
        "Memory with the loss logged each step",
        "Growth of the process between a tenth of the steps and the last, and that scaled to "
        "200,000 steps; the loss of each step goes to a file.",
        "beside",
        {"what": "memory"},
        ("growth, MB", "per 200,000", "µs per step", "file, MB", "weights"),
        memory_row,
        "growth_mb",
        ("memory_steps",),
    ),
    steps(
        "i1",
        "Evaluation",
        "The mean loss over ready batches.",
        "evaluate",
        look_row,
        ("loss",),
    ),
    steps(
        "i2",
        "Prediction",
        "The outputs for ready batches, joined.",
        "predict",
        look_row,
        ("outputs",),
    ),
    Scenario(
        "j1",
        "A whole job: digits",
        "From the command to the result, import and all: a convnet on the digits of scikit-learn, "
        "10 epochs of 45 shuffled steps, accuracy after each epoch, otherwise the defaults of "
        "each. Whoever shuffles or draws dropout in an order of his own has other bits. All are "
        "scripts; `stoker train` trains the same from a config. The time on the processor is less "
        "disturbed by what else the machine does.",
        "fresh",
        {"what": "job", "name": "digits"},
        JOB,
        job_row,
        "took_s",
    ),
    Scenario(
        "j2",
        "A whole job: text",
        "The same for a small transformer that reads Python's language reference, 2 epochs of 32 "
        "steps.",
        "fresh",
        {"what": "job", "name": "text"},
        JOB,
        job_row,
        "took_s",
    ),
]
LETTERS = sorted({scenario.letter for scenario in SCENARIOS})
