"""The moments at which a run is killed: where luck would have to be long awaited, and what it leaves is the worst.

Each entry is met in consecutive sessions: the second one dies while it mends what the first one left. A run called
"killed" that saves and validates every few updates, and in which validations improve, meets all of them.
"""

import random

from kill_at import KillPoint

TRAINING = "vanilla_transformer.training"
WRITE_ROW, SYNC_ROWS = f"{TRAINING}.metrics_log.MetricsLog.write", f"{TRAINING}.metrics_log.MetricsLog.sync"
VALIDATE, DECODE = f"{TRAINING}.validation.Validator.__call__", f"{TRAINING}.validation.translate_sharded"

SET_ASIDE = KillPoint("os.rename", 1, "after", r"/best \S*\.replaced-best$")


def while_beginning(draw: random.Random) -> list[list[KillPoint]]:
    return [
        [KillPoint(f"{TRAINING}.prepare.train_tokenizer", moment="after")],
        [KillPoint("os.fsync", draw.randint(1, 3), where=r"prepared/\.unfinished-")],
        [KillPoint("os.rename", where=r"prepared/\.unfinished-")],
        [KillPoint("os.replace", where=r"recipe\.yaml$")],
        [KillPoint("os.replace", where=r"killed/manifest\.json$")],
    ]


def while_training(draw: random.Random) -> list[list[KillPoint]]:
    return [
        # in an update, between its parts, and around what it leaves
        [KillPoint("torch.Tensor.backward", draw.randint(1, 6), "before")],
        [KillPoint("torch.Tensor.backward", draw.randint(1, 6), "after")],
        [KillPoint("torch.Tensor.backward", draw.randint(7, 12), "after")],
        [KillPoint("torch.optim.Adam.step", draw.randint(1, 5), "after")],
        [KillPoint(WRITE_ROW, draw.randint(1, 5), "before")],
        [KillPoint(WRITE_ROW, draw.randint(1, 5), "torn", r"/metrics\.jsonl$")],
        [KillPoint(WRITE_ROW, draw.randint(1, 5), "after")],
        # in a validation
        [KillPoint(VALIDATE, moment="before")],
        [KillPoint(DECODE, moment="before")],
        [KillPoint(DECODE, moment="after")],
        [KillPoint(VALIDATE, moment="after")],
        # while the best model is written, and put in the place of the former one
        [KillPoint("os.fsync", draw.randint(1, 8), where=r"\.unfinished-best")],
        [KillPoint("os.rename", where=r"\.unfinished-best ")],
        [SET_ASIDE, KillPoint("os.rename", where=r"\.replaced-best ")],
        [SET_ASIDE, KillPoint("os.rename", moment="after", where=r"\.replaced-best ")],
        [
            KillPoint("os.rename", moment="after", where=r"\.unfinished-best "),
            KillPoint("shutil.rmtree", where=r"\.replaced-best$"),
        ],
        # while a checkpoint is written
        [KillPoint(f"{TRAINING}.checkpoint.save_file", moment="before")],
        [KillPoint(f"{TRAINING}.checkpoint.save_file", moment="torn", where=r"optimizer\.safetensors$")],
        [KillPoint(f"{TRAINING}.checkpoint.write_manifest", moment="before", where=r"\.unfinished-step")],
        [
            KillPoint("os.fsync", draw.randint(1, 10), where=r"\.unfinished-step"),
            KillPoint("os.rmdir", where="unfinished"),
        ],
        [KillPoint("os.rename", where=r"\.unfinished-step-\d+ ")],
        [KillPoint("os.rename", moment="after", where=r"\.unfinished-step-\d+ ")],
        [KillPoint(SYNC_ROWS, moment="after")],
        # while older ones are let go
        [KillPoint(f"{TRAINING}.checkpoint.prune", draw.randint(1, 2))],
        [KillPoint("os.rename", moment="after", where=r"/step-\d+ \S*\.unfinished-step")],
        [KillPoint("os.unlink", draw.randint(1, 8), where=r"\.unfinished-step-\d+$")],
    ]


def while_ending(draw: random.Random) -> list[list[KillPoint]]:
    return [
        [KillPoint(f"{TRAINING}.averaging.save_file", moment="before")],
        [KillPoint(f"{TRAINING}.averaging.save_file", moment="torn", where=r"model\.safetensors$")],
        [KillPoint("os.fsync", draw.randint(1, 6), where=r"\.unfinished-final")],
        [KillPoint("os.rename", where=r"\.unfinished-final ")],
        [
            KillPoint("os.rename", moment="after", where=r"\.unfinished-final "),
            KillPoint("os.rename", moment="after", where=r"/final \S*\.replaced-final$"),
            KillPoint("os.rename", where=r"\.replaced-final "),
        ],
        [KillPoint("os.replace", where=r"test\.hypotheses\.txt$")],
        [KillPoint("os.replace", where=r"results/test\.json$")],
        [KillPoint("os.replace", 2, where=r"killed/manifest\.json$")],
        [KillPoint("os.replace", where=r"final/README\.md$")],
    ]
