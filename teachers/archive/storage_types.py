"""The types of PyTorch's storages, by the names that `torch.save` gives them."""

from __future__ import annotations

from typing import Any

import torch

from qpd.teachers.archive.inert_pickle import Global

_DTYPES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


def storage_dtype(record: Any) -> torch.dtype | None:
    """Return the number type of a storage class, which a pickle names; None for another one."""
    module, _, name = (
        record.global_name.rpartition(".") if isinstance(record, Global) else ("",) * 3
    )
    return _DTYPES.get(name) if module == "torch" else None
