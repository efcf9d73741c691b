"""Which device a run uses."""

import torch

_KNOWN = ("auto", "cpu", "cuda", "mps", "xpu")


def resolve_device(device: str | torch.device) -> torch.device:
    """The device behind a name, or an error before anything is moved.

    "auto" takes the accelerator that torch finds and the CPU where there is none. Other devices
    than the CPU are written with care and not tested: no machine at hand had one.
    """
    if device == "auto":
        found = torch.accelerator.current_accelerator(check_available=True)
        return found if found is not None else torch.device("cpu")
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise ValueError(
            f"device {device!r} is unknown: expected one of {', '.join(_KNOWN)}, "
            "with an index like 'cuda:2' where there are several"
        ) from error
    if wanted.type == "cpu":
        return wanted
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None or found.type != wanted.type:
        here = f"{found.type} and cpu" if found is not None else "cpu only"
        raise ValueError(
            f"device '{wanted}' was asked for, but this machine has {here}: "
            "use device='auto' or device='cpu'"
        )
    count = torch.accelerator.device_count()
    if wanted.index is not None and wanted.index >= count:
        raise ValueError(
            f"device '{wanted}' was asked for, but there are {count}: "
            f"{wanted.type}:0 to {wanted.type}:{count - 1}"
        )
    return wanted
