"""S3 and what speaks its protocol: where a thing lies, and what is asked of the server."""
