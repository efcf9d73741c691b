"""`Upload`: copy the last files of a run to its store."""

from stoker.core import dist
from stoker.core.errors import CheckpointError
from stoker.core.log import get_logger
from stoker.hooks.base.hook import Hook
from stoker.run import Run
from stoker.rundir.folder import RunFolder
from stoker.rundir.upload import push_files
from stoker.storage import url_of

_log = get_logger()


class Upload(Hook):
    """Copy what the other hooks have written at the end of a run to its store.

    A trainer whose ``run_dir`` is the URL of a store adds it. During a fit, checkpoints, metrics
    and the log are copied in the background.
    """

    priority = 1100
    same_on_all_ranks = True
    observes = True
    writes = True

    def after_run(self, run: Run) -> None:
        """Copy the files that have changed."""
        url = url_of(run.dir) if run.dir is not None else None
        if url is None or run.dir is None or not dist.is_main() or not run.dir.exists():
            return
        try:
            push_files(run.dir, url)
        except OSError as error:
            message = f"the last files of the run could not be copied to '{url}': {error.strerror}"
            if run.error is None:
                raise CheckpointError(f"{message}; they are in '{run.dir}'") from error
            _log.warning(message)


def upload_hooks(folder: RunFolder | None) -> list[Hook]:
    """Return the hooks that a run in this folder needs in addition."""
    return [Upload()] if folder is not None and folder.url is not None else []
