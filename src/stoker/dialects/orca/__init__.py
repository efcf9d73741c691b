"""BigDL Orca's names on Stoker: ``bigdl.orca.x.y`` is ``stoker.dialects.orca.x.y`` here."""

from stoker.dialects.orca.common import OrcaContext, init_orca_context, stop_orca_context

__all__ = ["OrcaContext", "init_orca_context", "stop_orca_context"]
