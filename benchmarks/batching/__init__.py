"""Measurements that were published elsewhere, each as one command."""
