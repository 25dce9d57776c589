"""What is asked of a server, and when: requests, their lengths, and the times at which they are due."""
