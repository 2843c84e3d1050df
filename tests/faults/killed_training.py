"""`train` for torchrun, dying at a kill point: killed_training.py RANK KILL_POINT_AS_JSON RECIPE --output-dir RUN ...

Only the first attempt dies; the one that torchrun starts in its place trains to the end.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from kill_at import KillPoint, arm  # noqa: E402

from vanilla_transformer.training import train  # noqa: E402, F401  (what is armed must be there)
from vanilla_transformer.training.command import main  # noqa: E402

rank, point = sys.argv[1:3]
del sys.argv[1:3]
if (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == (rank, "0"):
    arm(KillPoint(*json.loads(point)))
main()
