"""What scales Deployments where there is neither KEDA nor an adapter of metrics: the pipeline says how many
replicas it wants, and this patches the Deployments' scale."""
