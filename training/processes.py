"""What one process does for all of them, so that all succeed or all stop and none waits for one that has failed."""

from collections.abc import Callable
from typing import TypeVar

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from vanilla_transformer.configuration.errors import UserError

Answer = TypeVar("Answer")


def on_main(accelerator: Accelerator, do: Callable[[], Answer]) -> Answer | None:
    """Run `do` on the main process while the others wait; its answer, None on the others.

    What it raises is raised on the main process; the others leave with the same exit code and without a word.
    """
    if accelerator.num_processes == 1:
        return do()
    answer: Answer | None = None
    error: BaseException | None = None
    exit_code: list[int | None] = [None]
    if accelerator.is_main_process:
        try:
            answer = do()
        except BaseException as raised:
            error = raised
            exit_code[0] = raised.exit_code if isinstance(raised, UserError) else 1
    broadcast_object_list(exit_code)
    if error is not None:
        raise error
    if exit_code[0] is not None:
        raise SystemExit(exit_code[0])
    return answer


def said_once(accelerator: Accelerator, error: UserError) -> BaseException:
    """What to raise for an error that all processes meet together: the error on the main one, a mere exit on others."""
    return error if accelerator.is_main_process else SystemExit(error.exit_code)


def from_main(accelerator: Accelerator, do: Callable[[], Answer]) -> Answer:
    """As `on_main`, but every process gets the answer."""
    answer = [on_main(accelerator, do)]
    if accelerator.num_processes > 1:
        broadcast_object_list(answer)
    return answer[0]  # type: ignore[return-value]
