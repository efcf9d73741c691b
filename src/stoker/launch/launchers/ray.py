"""Processes on Ray, through Ray Train."""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from stoker.core.errors import RankFailed
from stoker.launch.rank import RESULT_ATTRIBUTE, ImportPath, RankResult, call_on_cluster

_HANDLER = "ray_print_logs"
"""The handler that prints what workers print; ``ray.shutdown`` removes it."""


def launch(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    workers: int | None = None,
    address: str | None = None,
    storage: str | Path | None = None,
    max_restarts: int = 0,
    elastic: tuple[int, int] | None = None,
) -> Any:
    """Run the function in workers of Ray Train and return the value of rank 0.

    With ``elastic``, Ray restarts the job with as many workers as fit when it loses or gains a
    node.
    """
    if elastic is not None:
        _check_elastic(elastic, workers, max_restarts)
    workers = workers or (elastic or (1, 1))[1]
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")  # it shows each line twice
    try:
        ray: Any = import_module("ray")
        torch: Any = import_module("ray.train.torch")
    except ImportError as error:
        raise ImportError(
            f"the 'ray' launcher needs Ray Train ({error}): pip install 'stoker[ray]'"
        ) from error

    with _cluster(ray, address, workers):
        gpus = ray.cluster_resources().get("GPU", 0) >= workers
        trainer = torch.TorchTrainer(
            partial(_run_worker, ImportPath(), fn, args),
            torch_config=torch.TorchConfig(
                backend="cpu:gloo,cuda:nccl" if gpus else "gloo"  # cuda: untested here
            ),
            scaling_config=ray.train.ScalingConfig(num_workers=elastic or workers, use_gpu=gpus),
            run_config=ray.train.RunConfig(
                storage_path=os.path.abspath(storage) if storage is not None else None,
                failure_config=ray.train.FailureConfig(max_failures=max_restarts),
                checkpoint_config=ray.train.CheckpointConfig(num_to_keep=1),
                **_without_logs(ray.train),
            ),
        )
        try:
            return trainer.fit().return_value
        except ray.train.TrainingFailedError as error:
            failures = getattr(error, "worker_failures", {})
            if not failures:
                raise
            raise _first_failure(failures, max_restarts) from None


def _check_elastic(elastic: tuple[int, int], workers: int | None, max_restarts: int) -> None:
    given = f"elastic is {elastic[0]}:{elastic[1]}"
    if workers is not None:
        raise ValueError(
            f"{given} and workers is {workers}: Ray starts as many workers as fit, so leave "
            "workers out"
        )
    if max_restarts == 0:
        raise ValueError(
            f"{given} and max_restarts is 0: Ray restarts the job with another number of workers, "
            "so pass max_restarts of 1 or more"
        )


def _run_worker(_: ImportPath, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    package = os.path.dirname(str(import_module("ray").__file__))
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(package):  # some of Ray's loggers have the name of their file
            logging.getLogger(name).setLevel(logging.ERROR)
    return call_on_cluster(fn, args)


@contextmanager
def _cluster(ray: Any, address: str | None, workers: int) -> Iterator[None]:
    """Connect to the cluster at ``address``, or run one on this machine inside the block."""
    if ray.is_initialized():
        with _only_ranks():
            yield
        return
    address = address or os.environ.get("RAY_ADDRESS")
    if address is not None:
        ray.init(address=address, logging_level="error")
    else:
        if " " in sys.executable:
            raise ValueError(
                f"Ray cannot start workers with '{sys.executable}', because the path contains a "
                "space: create the environment in a folder without spaces, or use nproc="
            )
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(
            address="local",
            num_cpus=max(workers, len(os.sched_getaffinity(0))),
            include_dashboard=False,
            logging_level="error",
            _node_ip_address="127.0.0.1",
        )
    try:
        with _only_ranks(restores=False):  # Ray's processes also print while they are shut down
            yield
    finally:
        ray.shutdown()


def _without_logs(train: Any) -> dict[str, Any]:
    """Return the option that silences Ray Train; what fails is raised as an error anyway."""
    config = getattr(train, "LoggingConfig", None)  # Ray 2.50 does not have it
    return {} if config is None else {"logging_config": config(log_level="CRITICAL")}


@contextmanager
def _only_ranks(*, restores: bool = True) -> Iterator[None]:
    """Within it, what the ranks print is printed, without the output of Ray's own processes.

    If Ray does not print what workers print, because you turned that off, neither does this.

    Args:
        restores: whether Ray prints as before afterwards; its shutdown removes the handler.
    """
    try:
        module = import_module("ray._private.ray_logging")
        dispatcher = module.global_worker_stdstream_dispatcher
        before = [handle for name, handle in dispatcher.handlers if name == _HANDLER]
    except (ImportError, AttributeError):
        yield  # another version of Ray, whose output stays as it is
        return
    if before:
        dispatcher.remove_handler(_HANDLER)
        dispatcher.add_handler(_HANDLER, _print_lines)
    try:
        yield
    finally:
        if restores:
            dispatcher.remove_handler(_HANDLER)
            for handle in before:
                dispatcher.add_handler(_HANDLER, handle)


def _print_lines(data: Mapping[str, Any]) -> None:
    if str(data.get("actor_name")).startswith("RayTrainWorker"):
        for line in data["lines"]:
            print(line, file=sys.stderr if data["is_err"] else sys.stdout, flush=True)


def _first_failure(failures: Mapping[int, BaseException], max_restarts: int) -> RankFailed:
    """Print the error of the worker that failed first: one that died, else the earliest."""

    def result_in(failure: BaseException) -> RankResult | None:
        found = getattr(getattr(failure, "_base_exc", failure), RESULT_ATTRIBUTE, None)
        return found if isinstance(found, RankResult) else None

    def time(item: tuple[int, BaseException]) -> float:
        result = result_in(item[1])
        return result.time if result is not None else 0.0

    rank, failure = min(failures.items(), key=time)
    result = result_in(failure)
    summary = f"rank {rank} died" if result is None else result.summary(rank)
    text = str(failure) if result is None else result.text
    if text:
        print(text, file=sys.stderr, flush=True)
    if max_restarts:
        summary += f"; all restarts used ({max_restarts} of {max_restarts})"
    return RankFailed(summary, 1 if result is None else result.code)
