"""The estimator of BigDL Orca: ``bigdl.orca.x.y`` is ``stoker.dialects.orca.x.y``."""

from stoker.dialects.orca.common import OrcaContext, init_orca_context, stop_orca_context

__all__ = ["OrcaContext", "init_orca_context", "stop_orca_context"]
