"""What makes pages of the documentation from the code. No part of the package."""
