"""Agents quantized as they are: what each precision costs, in one table."""
