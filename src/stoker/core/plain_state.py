"""`PlainState`: save the attributes of an object that can be saved."""

from typing import Any

from torch import Tensor

from stoker.core.types import Stateful

_SAVED = (Stateful, Tensor, bool, int, float, str, list, dict, type(None))


class PlainState:
    """Saves attributes that are plain values, tensors, or have a state of their own."""

    def state_dict(self) -> dict[str, Any]:
        """Return the attributes to save."""
        saved = {name: value for name, value in vars(self).items() if isinstance(value, _SAVED)}
        return {n: v.state_dict() if isinstance(v, Stateful) else v for n, v in saved.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the saved attributes."""
        for name, value in state.items():
            own = getattr(self, name, None)
            if isinstance(own, Stateful):
                own.load_state_dict(value)
            else:
                setattr(self, name, value)
