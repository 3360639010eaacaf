"""A contract that an endpoint is held to, and its verdict for a CI."""
