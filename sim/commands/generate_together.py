"""`python -m sim generate` with several prompts, which are continued together."""

import json
import sys

from golden import InputError
from sim.commands.engines.request import Request
from sim.commands.engines.together import Joint, Together
from sim.commands.generate import HERTZ, compared, moved


def continue_together(request: Request, arguments) -> int:
    """Run the command.

    :raises InputError: for an option that goes with one prompt alone.
    """
    if arguments.trace_out is not None:
        raise InputError("--trace-out goes with one prompt alone")

    def status(text: str) -> None:
        if not arguments.json:
            print(text, file=sys.stderr, flush=True)

    def progress(step: Joint, tokens: int) -> None:
        of = f"{len(step.texts)} texts" if len(step.texts) > 1 else f"text {step.texts[0] + 1}"
        status(f"{tokens} tokens: {step.cycles} cycles for {of}, {step.wall_s:.1f} s")

    speaker = Together(request, status)
    lengths = ", ".join(str(len(prompt)) for prompt in speaker.prompts)
    status(f"{len(speaker.prompts)} prompts of {lengths} tokens …")
    result = speaker.continue_all(progress)
    if arguments.json:
        print(json.dumps(result))
        return 0
    for prompt, text in zip(result["prompts"], result["texts"], strict=True):
        print(f"{prompt}{text}\n")
    print(summary(result))
    return 0


def summary(result: dict) -> str:
    """The end of a run for people to read."""
    steps, texts = result["cycles_of_steps"], sum(result["texts_of_steps"])
    prompts, read = sum(result["cycles_of_prompts"]), sum(result["prompt_tokens"])
    of = (
        f"{result['cycles']} cycles of {' and '.join(result['blocks'])}: {prompts} for "
        f"{len(result['texts'])} prompts of {read} tokens, {sum(steps)} for {len(steps)} steps."
    )
    lines = [compared(result), of]
    if steps:
        each = sum(steps) / texts
        lines.append(
            f"{each:,.0f} cycles a token in the steps, {HERTZ / each:,.0f} tokens a second at "
            f"1 GHz, without the model's other work; memory {result['memory']}."
        )
    cpu = result["cpu_s"] / (read + texts)
    lines.append(f"{moved(result)}; {cpu:.2f} CPU seconds a token; {result['peak_mib']} MiB.")
    differ = sum(first is not None for first in result["first_differences"])
    lines.append(
        f"{differ} of {len(result['texts'])} texts differ from dense attention's and products' in "
        "float32."
    )
    return "\n".join(lines)
