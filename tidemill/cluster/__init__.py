"""A user's side of a cluster: the kubeconfig, jobs and cells as the API server has them, and the way to a job's conductor."""
