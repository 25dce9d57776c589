"""An HTTP/1.1 client for many short streams: neither task nor queue from socket to reader."""
