"""Runs lm-eval's tasks of a folder against a server, once for each way to ask, and prints what each question got.

    python lm_eval_run.py '{"tasks": FOLDER, "names": [...], "model": {...}, "ways": [{"batch_size": 1}, ...]}'

The last line is a JSON list with one entry for each way: by task, the arguments and the response of each request.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager


def main() -> None:
    job: dict[str, Any] = json.loads(sys.argv[1])
    manager = TaskManager(include_path=job["tasks"], include_defaults=False)
    found = []
    for way in job["ways"]:
        results = simple_evaluate(
            model="local-completions",
            model_args=job["model"] | way,
            tasks=job["names"],
            task_manager=manager,
            log_samples=True,
            bootstrap_iters=0,
        )
        found.append({name: requests(samples) for name, samples in results["samples"].items()})
    print(json.dumps(found))


def requests(samples: list[dict[str, Any]]) -> list[Any]:
    """[context, continuation or options, response] of every request, in the order of the documents."""
    ordered = sorted(samples, key=lambda sample: sample["doc_id"])
    return [
        [*arguments, response[0]]
        for sample in ordered
        for arguments, response in zip(sample["arguments"], sample["resps"], strict=True)
    ]


if __name__ == "__main__":
    main()
