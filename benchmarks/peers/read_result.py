"""Print the result of a job and a digest of its weights, from its run folder.

python read_result.py NAME RUN
"""

import json
import sys
from importlib import import_module
from pathlib import Path

from measure import digest
from safetensors.torch import load_file
from work import Watch

name, run = sys.argv[1], Path(sys.argv[2])
task = import_module(f"{name}_job").task(Watch())
task.model.layers.load_state_dict(load_file(run / "model.safetensors"))
rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
result = [row["val/accuracy"] for row in rows if "val/accuracy" in row][-1]
print(json.dumps({"result": result, "weights": digest(task)}))
