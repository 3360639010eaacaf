"""A difference as plain text: both answers, one above the other, around the place where they part."""

from __future__ import annotations

from queueproof.audit.records import Difference
from queueproof.audit.report.words import escaped

_BEFORE, _AFTER = 60, 60  # characters that are shown around the first difference


def side_by_side(difference: Difference) -> str:
    """Several lines: what was asked, where the answers part, and both texts with `^` under the first difference."""
    names = (difference.a_name, difference.b_name)
    width = max(len(name) for name in names)
    start = max(0, difference.split - _BEFORE)
    before = escaped(difference.a[start : difference.split])
    lines = [f"prompt {difference.prompt!r}, {difference.group}: {where(difference)}"]
    if difference.a == difference.b:
        return lines[0]
    lead = "…" if start else ""
    for name, text in zip(names, (difference.a, difference.b), strict=True):
        rest = text[difference.split : difference.split + _AFTER]
        tail = "…" if len(text) > difference.split + _AFTER else ""
        lines.append(f"  {name:>{width}}: {lead}{before}{escaped(rest) or '(ends here)'}{tail}")
    lines.append(" " * (width + 4 + len(lead) + len(before)) + "^ the first difference")
    return "\n".join(lines)


def where(difference: Difference) -> str:
    """Where two answers part, in words and numbers."""
    if difference.position is None:
        said = f"log-probabilities differ from token {difference.logprob_position} on"
    else:
        unit = "character" if difference.unit == "text" else "token"
        said = f"the answers part at {unit} {difference.position}"
    if difference.max_logprob_difference:
        said += f", log-probabilities by up to {difference.max_logprob_difference:.3g} while the tokens agree"
    if difference.margin is not None:
        said += f"; the best token led by {difference.margin:.3g} there"
    if difference.near_tie is not None:
        said += " (a near tie)" if difference.near_tie else " (no near tie)"
    return said
