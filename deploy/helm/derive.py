#!/usr/bin/env python3
"""Writes the derived files of the chart: alerts, dashboard, the broker's schema, and the table of values in README.md.

With --check nothing is written, and the exit code is 1 if a file is not up to date.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/leasehold"
BEGIN, END = "<!-- values -->\n\n", "\n<!-- end of values -->\n"


def rows(text: str) -> list[tuple[str, str, str]]:
    """Returns each value with its default and the text of its comment."""
    found = []
    path: list[tuple[int, str]] = []
    said = ""
    is_default_on_lines = False
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        comment = line.strip()
        if comment.startswith("# -- "):
            said = comment[5:]
            continue
        if comment.startswith("# ") and said:
            said += " " + comment[2:]
            continue
        key = re.match(r" *([A-Za-z]+): *(.*)$", line)
        if not key or (is_default_on_lines and path and indent > path[-1][0]):
            continue
        path = [(at, name) for at, name in path if at < indent] + [(indent, key[1])]
        is_default_on_lines = bool(said) and key[2] in ("", "|")
        if said:
            default = "see values.yaml" if is_default_on_lines else key[2]
            found.append((".".join(name for _, name in path), default, said))
        said = ""
    return found


def table(text: str) -> str:
    """Returns the rows as a Markdown table."""
    lines = ["| value | default | what it is |", "| -- | -- | -- |"]
    for name, default, said in rows(text):
        shown = default if default == "see values.yaml" else f"`{default}`"
        lines.append(f"| `{name}` | {shown} | {said} |")
    return "\n".join(lines) + "\n"


def derived() -> dict[Path, str]:
    """Returns all derived files with their texts."""
    readme = (CHART / "README.md").read_text()
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    schema = json.loads((CHART / "values.schema.json").read_text())
    broker = json.loads((ROOT / "docs/leasehold.schema.json").read_text())
    # The key is for editors of the broker's file. In the values it would be an additional key.
    del broker["$schema"]
    schema["definitions"]["broker"] = broker
    return {
        CHART / "README.md": before + BEGIN + table((CHART / "values.yaml").read_text()) + END + after,
        CHART / "values.schema.json": json.dumps(schema, indent=2, ensure_ascii=False) + "\n",
        CHART / "files/rules.yaml": (ROOT / "deploy/prometheus/rules.yaml").read_text(),
        CHART / "files/leasehold.json": (ROOT / "deploy/grafana/leasehold.json").read_text(),
    }


def main() -> int:
    """Writes or checks the derived files."""
    is_stale = False
    for path, text in derived().items():
        if path.exists() and path.read_text() == text:
            continue
        if "--check" in sys.argv[1:]:
            print(f"{path.relative_to(ROOT)} is stale: run deploy/helm/derive.py", file=sys.stderr)
            is_stale = True
            continue
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return 1 if is_stale else 0


if __name__ == "__main__":
    sys.exit(main())
