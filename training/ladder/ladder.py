"""The ladder from file to report: each study in turn, as far as it is not done yet, then what they show.

A study is a module training/ladder/STUDY.py with
    a frozen dataclass of its settings (settings.STUDIES names it), whose `problems()` lists what is out of range,
    run(settings, systems, folder) -> None, which keeps every finished cell in folder/STUDY.json (`cells.Cells`),
    and what `exhibits` describes: TITLE, tables(rows), plots(rows).
"""

import logging
from pathlib import Path

import torch

from vanilla_transformer.training.folder_lock import locked
from vanilla_transformer.training.ladder.plots import require_matplotlib
from vanilla_transformer.training.ladder.report import write_report
from vanilla_transformer.training.ladder.settings import Ladder

logger = logging.getLogger(__name__)


def run_ladder(ladder: Ladder, output_dir: Path) -> Path:
    """Run the studies into `output_dir`, go on where an earlier run was stopped, and return the report's page.

    The report is written anew after each study. Raises UsageError where the folder holds results of other settings,
    UserError where the folder is in use or the plots' extra is missing.
    """
    require_matplotlib()
    if ladder.threads is not None:
        torch.set_num_threads(ladder.threads)
    with locked(output_dir):
        for study in ladder.studies:
            logger.info(study.module.TITLE)
            study.module.run(study.settings, ladder.systems, output_dir)
            page = write_report(output_dir)
    return page
