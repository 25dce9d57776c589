"""What is new in a stream: emerging topics and viral trends. Pure: no clock, no file, no Flink.

Detectors take texts or counts with the stream's time and give events; their state is bounded, and becomes
bytes and back without any change of behaviour.
"""
