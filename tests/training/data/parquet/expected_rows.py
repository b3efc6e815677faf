"""Rows of a pyarrow table as JSON, in the form that our reader promises."""

import json
import math


def plain(value):
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value


def json_lines(table):
    """One line per row: columns in order, NaN and infinities as null."""
    return [json.dumps(plain(row), ensure_ascii=False, separators=(",", ":")) for row in table.to_pylist()]
