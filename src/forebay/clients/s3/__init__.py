"""S3 and compatible object stores: addresses of objects, and a client."""
