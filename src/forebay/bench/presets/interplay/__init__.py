"""`forebay bench interplay`: how a stream's settings act on the engine, and the engine on the stream."""
