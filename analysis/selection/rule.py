"""Rules that choose the bits and the width of a controller, step by step.

Kresse & Lampert (arXiv 2511.07046): with the widest network and most input bits the fewest bits of
the core at parity; with that core the narrowest network; with both the fewest bits of the input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

MOST_BITS = 8


@dataclass(frozen=True, order=True)
class Cell:
    """Bits of weights and activations, width of hidden layers, bits of inputs and of outputs."""

    core: int
    width: int
    inputs: int
    outputs: int = MOST_BITS  # of a continuous action's code; no rule chooses them

    def __str__(self) -> str:
        """Return it in words."""
        output = "" if self.outputs == MOST_BITS else f", output {self.outputs}"
        return f"core {self.core}, width {self.width}, input {self.inputs}{output}"


STEPS = ("core", "width", "inputs")
WIDE = ("width", "inputs", "outputs")  # what is at its most in the first step


@dataclass(frozen=True)
class Step:
    """One step: the cells that were compared, largest first, which passed, and the choice."""

    name: str
    cells: tuple[Cell, ...]
    passing: tuple[bool, ...]
    chosen: Cell | None


Rule = Callable[[Sequence[bool]], int | None]


def smallest(passing: Sequence[bool]) -> int | None:
    """Return the last index that passes, whatever fails before it: the paper's rule, literally."""
    found = np.flatnonzero(passing)
    return int(found[-1]) if len(found) else None


def smallest_without_gap(passing: Sequence[bool]) -> int | None:
    """Return the last index that passes with all before it: everything larger passes, too."""
    count = int(np.argmin([*passing, False]))
    return count - 1 if count else None


RULES: dict[str, Rule] = {"paper": smallest, "monotone": smallest_without_gap}


def choose(passes: Mapping[Cell, bool], rule: Rule) -> tuple[Step, ...]:
    """Go through the steps, from the widest network with most input and output bits.

    Stop where none passes.

    Cells that no step asks for are not looked at; one that is missing is no candidate. Raises
    ValueError for no cells.
    """
    if not passes:
        raise ValueError("no cells")
    first = {name: max(getattr(cell, name) for cell in passes) for name in WIDE}
    steps: list[Step] = []
    at: Cell | None = None
    for name in STEPS:
        fixed = dict(first if at is None else vars(at))
        fixed.pop(name, None)
        cells = tuple(
            sorted(
                (cell for cell in passes if fixed.items() <= vars(cell).items()),
                key=lambda cell: getattr(cell, name),
                reverse=True,
            )
        )
        passing = tuple(passes[cell] for cell in cells)
        index = rule(passing)
        at = None if index is None else cells[index]
        steps.append(Step(name, cells, passing, at))
        if at is None:
            break
    return tuple(steps)


def edge_of(floats: np.ndarray, share: float | None) -> np.ndarray:
    """Return the least mean at parity, of float returns `[..., seeds]`: shape `[...]`.

    That is the mean less one standard deviation (n - 1) over seeds, or with `share` so much of the
    mean's magnitude below it: a share of 0.95 allows 5%.
    """
    mean = floats.mean(-1)
    if share is not None:
        return np.asarray(mean - (1.0 - share) * np.abs(mean))
    return np.asarray(mean - floats.std(-1, ddof=1))


def frequencies(
    steps: Sequence[Step],
    scores: Mapping[Cell, Mapping[int, float]],
    floats: Mapping[int, float],
    rule: Rule,
    share: float | None = None,
    resamples: int = 10_000,
    seed: int = 0,
) -> tuple[float, ...]:
    """Return how often each step's choice would be the same with other seeds, 0 to 1.

    `scores` and `floats` are mean returns by seed. Seeds are drawn again with replacement: those
    that the floats and all cells of a step have, for all of them together; where these are fewer
    than two, each one's own. Each step begins with the choice that was made before it. NaN where
    nothing can be drawn: a single seed.
    """
    rng = np.random.default_rng(seed)
    found = []
    for step in steps:
        together = [floats, *(scores[cell] for cell in step.cells)]
        base, *cells = _drawn_seeds(together, resamples, rng)
        # With the deviation over seeds, draws of one seed alone have an edge at its mean.
        with_edge = edge_of(base, share)
        passing = np.stack([each.mean(-1) for each in cells], axis=1) >= with_edge[:, None]
        same = [rule(row) == _index(step) for row in passing.tolist()]
        alone = any(len(each) < 2 for each in together)
        found.append(float("nan") if alone else float(np.mean(same)))
    return tuple(found)


def _index(step: Step) -> int | None:
    return None if step.chosen is None else step.cells.index(step.chosen)


def _drawn_seeds(
    means: Sequence[Mapping[int, float]], resamples: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Return resamples `[resamples, seeds]` of each one's means."""
    shared = sorted(set.intersection(*(set(each) for each in means)))
    own = [shared if len(shared) > 1 else sorted(each) for each in means]
    values = [
        np.array([each[seed] for seed in seeds]) for each, seeds in zip(means, own, strict=True)
    ]
    if len(shared) > 1:
        which = rng.integers(0, len(shared), (resamples, len(shared)))
        return [each[which] for each in values]
    return [each[rng.integers(0, len(each), (resamples, len(each)))] for each in values]
