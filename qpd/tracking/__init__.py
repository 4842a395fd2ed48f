"""What a run measures while it trains: metrics.csv, TensorBoard, Weights & Biases."""
