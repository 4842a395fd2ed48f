"""The phases of Algorithm 1: distill, quantize, finetune, evaluate, or all of them."""
