"""What is asked: a set of our own, and files that people have."""
