"""Precision: low precision and mixed precision beside float32."""
