"""What a pipeline does with Kafka besides reading and writing: positions, transactions, and checks."""
