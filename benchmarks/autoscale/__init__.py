"""Scaling policies side by side, in the simulator."""
