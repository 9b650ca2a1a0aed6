#!/usr/bin/env python3
"""Prints what the chart renders from a file of values, as a list in JSON. Further arguments go to `helm template`."""

import json
import sys
from pathlib import Path

import chart

done = chart.template([Path(sys.argv[1])], *sys.argv[2:])
if done.returncode != 0:
    sys.exit(done.stderr)
print(json.dumps(chart.parsed(done.stdout)))
