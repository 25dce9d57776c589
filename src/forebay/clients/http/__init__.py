"""An HTTP/1.1 client for engines, made for many short streams: neither task nor queue from socket to reader.

May import value modules at the root only.
"""
