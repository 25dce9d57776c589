"""Times in Flink."""

from __future__ import annotations

END_OF_INPUT_MS = 2**63 - 2
"""An event-time timer at this time fires with the final watermark."""
