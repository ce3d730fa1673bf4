"""Training curves for people, from the job's events: TensorBoard's files always, Weights & Biases and MLflow where they are set up."""
