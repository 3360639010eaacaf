"""An audit as a page to read and to pass on: one HTML file that asks for nothing else."""
