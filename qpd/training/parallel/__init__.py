"""Training in several processes of one machine, each with a part of every batch.

On a CPU a step's operations are short, and threads that share them meet after each: a process of
its own for a part of the batch meets the others twice in a step. The first process (`processes`)
draws, optimizes and does all the rest; the others (`worker`) only compute gradients, and hold
nothing that would have to be saved.
"""
