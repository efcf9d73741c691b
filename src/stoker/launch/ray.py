"""The processes of a job on Ray, through Ray Train."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from stoker.core.errors import RankFailed
from stoker.launch.rank import REPORT, ImportPath, Report, called

os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")


def run_on_ray(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    workers: int,
    address: str | None,
    storage: str | None,
    max_restarts: int,
) -> Any:
    """Run the function in workers of Ray Train; what rank 0 returned."""
    try:
        ray: Any = import_module("ray")
        torch: Any = import_module("ray.train.torch")
    except ImportError as error:
        raise ImportError(
            f"to run on Ray, Ray Train is needed ({error}): pip install 'stoker[ray]'"
        ) from error

    with _cluster(ray, address, workers):
        gpus = ray.cluster_resources().get("GPU", 0) >= workers
        trainer = torch.TorchTrainer(
            partial(_work, ImportPath(), fn, args),
            torch_config=torch.TorchConfig(
                backend="cpu:gloo,cuda:nccl" if gpus else "gloo"  # cuda: untested here
            ),
            scaling_config=ray.train.ScalingConfig(num_workers=workers, use_gpu=gpus),
            run_config=ray.train.RunConfig(
                storage_path=os.path.abspath(storage) if storage is not None else None,
                failure_config=ray.train.FailureConfig(max_failures=max_restarts),
                checkpoint_config=ray.train.CheckpointConfig(num_to_keep=1),
            ),
        )
        try:
            return trainer.fit().return_value
        except ray.train.TrainingFailedError as error:
            failures = getattr(error, "worker_failures", {})
            if not failures:
                raise
            raise _told(failures, max_restarts) from None


def _work(_: ImportPath, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """What runs in each worker."""
    return called(fn, args)


@contextmanager
def _cluster(ray: Any, address: str | None, workers: int) -> Iterator[None]:
    """A connection to the cluster that was named, or to one of its own on this machine."""
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS")
    if address is not None:
        ray.init(address=address, logging_level="warning")
    else:
        if " " in sys.executable:
            raise ValueError(
                f"Ray starts workers through a shell, which takes a blank in '{sys.executable}' "
                "for an end: make the environment in a folder without one, or use nproc="
            )
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(
            address="local",
            num_cpus=max(workers, len(os.sched_getaffinity(0))),
            include_dashboard=False,
            logging_level="warning",
            _node_ip_address="127.0.0.1",
        )
    try:
        yield
    finally:
        ray.shutdown()


def _told(failures: Mapping[int, BaseException], max_restarts: int) -> RankFailed:
    """The error of the worker that failed first, printed once: one that died, else the earliest."""

    def report(failure: BaseException) -> Report | None:
        found = getattr(getattr(failure, "_base_exc", failure), REPORT, None)
        return found if isinstance(found, Report) else None

    def when(item: tuple[int, BaseException]) -> float:
        found = report(item[1])
        return found.when if found is not None else 0.0

    rank, failure = min(failures.items(), key=when)
    found = report(failure)
    if found is None:
        found = Report(0.0, 1, text=str(failure))
        words = f"rank {rank} died"
    elif found.error:
        words = f"rank {rank} failed with {found.error}"
    else:
        words = f"rank {rank} left with exit code {found.code}"
    if found.text:
        print(found.text, file=sys.stderr, flush=True)
    if max_restarts:
        words += f"; {max_restarts} of {max_restarts} restarts are used up"
    return RankFailed(words, found.code)
