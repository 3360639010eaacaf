"""Traces through OpenTelemetry's SDK, where it is installed and an endpoint is named.

One span for each request for an answer, with the attributes of the GenAI semantic conventions; a W3C traceparent header of
the request is continued. No prompt and no answer is in a span.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from queueproof.contract.errors import UnsupportedDevice, UsageError
from queueproof.server.extension import Extension, GenerationRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from queueproof.server.state import AppState

OPERATIONS = {"chat": "chat", "completion": "text_completion"}
PROVIDER = "queueproof"
