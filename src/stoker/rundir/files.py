"""The names of the files in a run folder.

Code that reads or writes a run folder takes the names from this table. It imports nothing, so every
layer may use it.
"""

CONFIG = "config.yaml"
"""The exact configuration, as `stoker train` takes it."""

RECORDED_BY = "recorded_by"
"""The key that marks the ``config.yaml`` of a script, which nothing can be built from."""

IDENTITY = "identity.json"
"""What the run is made of; a run is resumed only by the same one."""

ENVIRONMENT = "env.json"
"""Versions, hardware, git state and command of the first attempt; `environment_file` for others."""

METRICS = "metrics.jsonl"
"""Scalars, one JSON object per step."""

METRICS_CSV = "metrics.csv"
"""The same as a table."""

HISTORY = "history"
"""The folder of the history of a run of many epochs, as far as its checkpoints do not hold it."""

LEDGER = "ledger.jsonl"
"""What the time of every attempt was spent on."""

LOG = "log.txt"
"""The log of rank 0; `log_file` for the others."""

COST = "cost.json"
"""What each hook and metric costs per step."""

TRACE = "trace.json"
"""A profile for a trace viewer."""

WEIGHTS = "model.safetensors"
"""The final weights."""

CHECKPOINTS = "checkpoints"
"""The folder of the checkpoints."""

LOCK = ".lock"
"""The folder with the lease of the process that writes into a folder of checkpoints."""

MEDIA = "media"
"""The folder of logged images."""

MEDIA_INDEX = "media.jsonl"
"""Logged images and texts, one JSON object each."""

TENSORBOARD = "tb"
"""The folder of TensorBoard's event files."""

WANDB = "wandb"
"""The folder of Weights & Biases."""

MLFLOW = "mlflow.json"
"""The identity of the run in MLflow."""

TRACES_OF_A_RUN = (
    *(CONFIG, IDENTITY, ENVIRONMENT, METRICS, METRICS_CSV, LOG, LEDGER, WEIGHTS),
    *(TENSORBOARD, WANDB, MLFLOW, TRACE, CHECKPOINTS),
)
"""A folder with any of these holds a run."""

RESULTS_OF_A_RUN = (METRICS, METRICS_CSV, WEIGHTS, TENSORBOARD, WANDB, MLFLOW, TRACE)
"""A folder with any of these holds a run that has trained."""


def identity_file(fit: int) -> str:
    """Return the name of the identity of a fit: ``identity.json``, ``identity-2.json``, …."""
    return IDENTITY if fit == 1 else f"identity-{fit}.json"


def environment_file(attempt: int) -> str:
    """Return the name of the environment file of an attempt: ``env.json``, ``env-2.json``, …."""
    return ENVIRONMENT if attempt == 1 else f"env-{attempt}.json"


def log_file(rank: int) -> str:
    """Return the name of the log of a rank: ``log.txt``, ``log.txt.rank1``, …."""
    return LOG if rank == 0 else f"{LOG}.rank{rank}"
