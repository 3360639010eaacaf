"""The contract: what may vary without changing an answer. Standard library only."""
