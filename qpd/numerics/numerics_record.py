"""A record of what decides the last bits of a run's results, beside recipe and versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from qpd.machine.description import cpu_model

if TYPE_CHECKING:
    import torch


class NumericsRecord(BaseModel):
    """The place and order in which sums are formed: with other values, results round differently.

    On a CPU, two runs of one recipe with equal records and versions give equal results.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: str = Field(description="the processor's or the GPU's name", max_length=200)
    bfloat16: bool = Field(description="whether `precision: auto` is bfloat16 there")
    threads: int = Field(ge=1, le=2**20, description="PyTorch's, within one operation")
    compiler: bool | None = Field(
        None,
        description="whether `compile: auto` finds a C++ compiler; null: nothing is compiled, or "
        "the record is an earlier version's",
    )

    def differences(self, now: NumericsRecord) -> str:
        """Describe how `now` differs, such as `2 threads (1 before)`; empty if it does not."""
        found = []
        if now.device != self.device:
            found.append(f"{now.device} ({self.device} before)")
        if now.bfloat16 != self.bfloat16:
            found.append(
                "bfloat16 (float32 before)" if now.bfloat16 else "float32 (bfloat16 before)"
            )
        if now.threads != self.threads:
            found.append(f"{now.threads} threads ({self.threads} before)")
        if None not in (now.compiler, self.compiler) and now.compiler != self.compiler:
            found.append("a C++ compiler (none before)" if now.compiler else "no C++ compiler")
        return ", ".join(found)


def record_numerics(device: torch.device, compiler: bool | None = None) -> NumericsRecord:
    """Record the numerics of this process; `compiler`: there is one for C++, None: none is used."""
    import torch  # manifests are read without it

    from qpd.numerics.precision import has_bfloat16_units

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model()
    # A sum over n threads has n partial sums, so its last bits depend on their number.
    threads = torch.get_num_threads()
    return NumericsRecord(
        device=name[:200],
        bfloat16=has_bfloat16_units(device.type),
        threads=threads,
        compiler=compiler,
    )
