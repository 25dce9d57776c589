"""What people want from a stream, each as one pure module: its settings, and the program that they make.

`graph` puts an application into a Flink job.
"""
