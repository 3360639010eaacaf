"""The names under which the model is served."""

from __future__ import annotations

from queueproof.server.config import ServerConfig
from queueproof.server.errors import ApiError, brief


def check_model(config: ServerConfig, name: str | None) -> str:
    """The name of the model in the answer. Raises ApiError 404 for one that is not served."""
    names = config.model_names
    if name is not None and name not in names:
        raise ApiError(
            404,
            "model_not_found",
            f"the model {brief(name)} is not served here; served are {', '.join(names)}",
            "model",
        )
    return names[0] if name is None else name
