"""Student files: distilled.safetensors, quantized.safetensors, their origin and `predict`."""
