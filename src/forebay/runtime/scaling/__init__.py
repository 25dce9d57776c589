"""The replicas of a run that grow and shrink with its stream."""
