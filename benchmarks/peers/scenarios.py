"""The scenarios: what each requests of the workers, and the columns of its table."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

Answer = dict[str, Any]
Answers = dict[str, list[Answer]]
"""The answers of each peer, by round."""

Row = list[str]


@dataclass(frozen=True)
class Scenario:
    """One table.

    ``lane`` says how it runs: "steps" in interleaved rounds on one core, "alone" in separate
    ``rounds`` on all cores, "parallel" once per peer and two at a time, "fresh" in interleaved
    rounds of new processes. ``page`` is the page in docs/benchmarks that has the table.
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
    page: str = "steps"

    @property
    def letter(self) -> str:
        return self.key[0]


def of(name: str, answers: list[Answer]) -> list[float]:
    return [answer[name] for answer in answers]


def times(name: str, answers: list[Answer], plain: list[Answer]) -> float:
    """Return the median over rounds of the ratio to the plain loop in the same round.

    A machine that is slower for some minutes slows both.
    """
    pairs = zip(of(name, answers), of(name, plain), strict=False)
    return median(mine / theirs for mine, theirs in pairs)


# Rows: the answers of the peer, the answers of the plain loop


def sameness(answers: list[Answer], plain: list[Answer]) -> str:
    """Return whether the peer trained to the same weights."""
    mine, theirs = answers[-1]["weights"], plain[-1]["weights"]
    if mine == theirs:
        return "same bits"
    if isinstance(mine, str):
        return "other bits"
    return f"differ by {max(abs(a - b) for a, b in zip(mine, theirs, strict=True)):.0e}"


def result(answers: list[Answer], plain: list[Answer]) -> str:
    """Compare the result with that of the plain loop."""
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


def eval_row(answers: list[Answer], plain: list[Answer]) -> Row:
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
    wall, cpu = of("took_s", answers), of("processor_s", answers)
    return [
        f"{median(wall):.2f}",
        f"{min(wall):.2f}",
        f"{times('took_s', answers, plain):.2f}",
        f"{median(cpu):.2f}",
        f"{times('processor_s', answers, plain):.2f}",
        f"{answers[-1]['result']:.1%}",
        sameness(answers, plain),
    ]


def recover_row(answers: list[Answer], plain: list[Answer]) -> Row:
    return [
        f"{median(of('recover_s', answers)):.2f}",
        f"{min(of('recover_s', answers)):.2f}",
        f"{times('recover_s', answers, plain):.2f}",
        str(answers[-1]["resumed_at"]),
    ]


def cpu_of(answers: list[Answer]) -> list[float]:
    return [one["processor_s"] - one["paused_cpu"] for one in answers]


def goal_of(plain: list[Answer]) -> float:
    """Return the loss to reach: that of the plain loop before its last epoch, and 0.2 % more."""
    return 1.002 * float(plain[0]["losses"][-2][1])


def seconds_to(goal: float, answers: list[Answer]) -> list[float | None]:
    return [next((s for s, loss in one["losses"] if loss <= goal), None) for one in answers]


def to_goal(answers: list[Answer], plain: list[Answer]) -> Row:
    """Return the seconds to the validation loss, and the ratio to the plain loop."""
    goal = goal_of(plain)
    both = zip(seconds_to(goal, answers), seconds_to(goal, plain), strict=False)
    pairs = [(mine, theirs) for mine, theirs in both if mine is not None and theirs is not None]
    if not pairs:
        return ["not reached" if any(one["losses"] for one in answers) else "–", "–"]
    ratio = median(mine / theirs for mine, theirs in pairs)
    return [f"{median(mine for mine, _ in pairs):.2f}", f"{ratio:.2f}"]


def realistic_row(answers: list[Answer], plain: list[Answer]) -> Row:
    cpu = zip(cpu_of(answers), cpu_of(plain), strict=False)
    peak = max(of("peak_mb", answers))
    return [
        f"{median(of('epoch_s', answers)):.2f}",
        f"{min(of('epoch_s', answers)):.2f}",
        f"{times('epoch_s', answers, plain):.2f}",
        f"{median(mine / theirs for mine, theirs in cpu):.2f}",
        *to_goal(answers, plain),
        f"{peak:.0f}",
        f"{peak / max(of('peak_mb', plain)):.2f}",
        f"{answers[-1]['result']:.1%}",
        sameness(answers, plain),
    ]


REALISTIC = (
    "s per epoch",
    "fastest",
    "× plain",
    "× plain CPU",
    "s to the loss",
    "× plain to the loss",
    "peak MB",
    "× plain MB",
    "accuracy",
    "weights",
)


def realistic(key: str, title: str, text: str, name: str) -> Scenario:
    request = {"what": "job", "name": name}
    return Scenario(
        key,
        title,
        text,
        "fresh",
        request,
        REALISTIC,
        realistic_row,
        "epoch_s",
        page="realistic-work",
    )


JOB = ("seconds", "fastest", "× plain", "CPU seconds", "× plain CPU", "accuracy", "weights")
STEP = ("µs per step", "fastest", "over plain, µs", "× plain", "setup, ms")


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
    steps("a", "Everything off, prepared batches", "A list of batches, no other features.", "fit"),
    steps(
        "b",
        "Everything off, a DataLoader",
        "The same batches from a `DataLoader` over a `TensorDataset`, in order, without workers.",
        "fit",
        data="loader",
    ),
    steps(
        "c",
        "Default settings",
        "The progress bars, logs and checkpoints that each peer has by default, with a folder to "
        "write to and a terminal. Only what changes the mathematics (clipping, a learning-rate "
        "schedule) is off. Plain PyTorch is the bare loop.",
        "defaults",
    ),
    steps(
        "d",
        "Accuracy on every step",
        "Nothing else enabled; the metric that each peer has or recommends. Plain PyTorch compares "
        "and sums by hand.",
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
        "Seconds in new processes: to import the peer after torch, and from the command to the end "
        "of the first step with everything off.",
        "fresh",
        {"what": "first_step"},
        ("import, s", "first step, s", "fastest", "× plain"),
        start_row,
        "first_s",
    ),
    Scenario(
        "g1",
        "How long a save blocks the loop",
        "A model with 4.2 million weights and Adam, saved every 10 steps: how much longer the step "
        "with a save is than the others, and the total cost of a save, including the steps that it "
        "slows down. Medians of five rounds of five saves without the first, on all cores.",
        "alone",
        {"what": "stall", "saves": 5},
        ("blocks, ms", "fastest", "× plain", "costs, ms", "on disk, MB", "a step, ms", "weights"),
        stall_row,
        "blocked_ms",
        rounds=5,
    ),
    Scenario(
        "g2",
        "Killed and restarted",
        "Three epochs of 20 steps with shuffling and dropout, a save every 7 steps, killed with "
        "SIGKILL in step 33, restarted: does it end at the same bits as without the kill? Each "
        "peer resumes in its documented way. After the save at step 28 there are 32 steps left; a "
        "peer that writes in the background may have to resume from the save before it. Plain "
        "PyTorch saves RNG state and position by hand. Peers that shuffle in their own order have "
        "other weights even without a kill.",
        "parallel",
        {"what": "resume", "kill_at": 33, "every": 7},
        ("same bits after a kill", "steps after it", "weights without a kill"),
        resume_row,
        "difference",
    ),
    Scenario(
        "h",
        "Memory with the loss logged every step",
        "Growth of the process between a tenth of the steps and the last, and the same scaled to "
        "200,000 steps; the loss of each step is written to a file.",
        "parallel",
        {"what": "memory"},
        ("growth, MB", "per 200,000", "µs per step", "file, MB", "weights"),
        memory_row,
        "growth_mb",
        ("memory_steps",),
    ),
    steps(
        "i1",
        "Evaluation",
        "The mean loss over prepared batches.",
        "evaluate",
        eval_row,
        ("loss",),
    ),
    steps(
        "i2",
        "Prediction",
        "The concatenated outputs for prepared batches.",
        "predict",
        eval_row,
        ("outputs",),
    ),
    Scenario(
        "j1",
        "A complete job: digits",
        "From the command to the result, imports included: a convnet on scikit-learn's digits, 10 "
        "epochs of 45 shuffled steps, accuracy after each epoch, otherwise default settings. Peers "
        "that shuffle or draw dropout in their own order have other bits. All are scripts; `stoker "
        "train` trains the same from a config. CPU time is less disturbed by other work on the "
        "machine.",
        "fresh",
        {"what": "job", "name": "digits"},
        JOB,
        job_row,
        "took_s",
    ),
    Scenario(
        "j2",
        "A complete job: text",
        "The same for a small transformer on Python's language reference, 2 epochs of 32 steps.",
        "fresh",
        {"what": "job", "name": "text"},
        JOB,
        job_row,
        "took_s",
    ),
    realistic(
        "k1",
        "Augmented images",
        "A residual convnet on 3,200 images of 32 × 32, shifted and mirrored in two workers that "
        "stay alive, 3 epochs, accuracy after each epoch.",
        "images",
    ),
    realistic(
        "k2",
        "A transformer",
        "A transformer of 11 million parameters on text, with a fused AdamW, 2 epochs.",
        "gpt",
    ),
    realistic(
        "k3",
        "Fine-tuning",
        "A convnet of which only the last layer is trained; images in memory, 3 epochs.",
        "finetune",
    ),
    realistic(
        "k4",
        "A table of a million rows",
        "An MLP on 980,000 rows in memory, in batches of 1,024, 2 epochs. Every trainer gets a "
        "`DataLoader`; the plain loop indexes the tensors by hand, batch by batch.",
        "table",
    ),
    Scenario(
        "l",
        "One process: from a restart to the next new step",
        "Seconds from the second start of a training that was killed with SIGKILL in step 33 until "
        "that step is done, imports included; saves every 7 steps, as in (g2). Plain PyTorch loads "
        "what it wrote with `torch.save`.",
        "fresh",
        {"what": "recover", "every": 7, "step": 33},
        ("seconds", "fastest", "× plain", "resumed at step"),
        recover_row,
        "recover_s",
        page="failure",
    ),
]
LETTERS = sorted({scenario.letter for scenario in SCENARIOS})
