"""Steps of the shipped trace as C, `steps.h`, and the device's widths as Verilog, `device.vh`.

Arguments: preset, number of steps, folder of the device's package.
"""

import importlib
import json
import sys
from pathlib import Path

from hw.catalogue import find
from sim.core import payload
from sim.drivers.run import load_trace, stimuli_of

preset, count, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
block = find("veda.veda_core")
parameters = block.parameters_class.preset(preset)
module = f"veda_veda_core_{preset}_axi"
sys.path.insert(0, str(folder))
driver = importlib.import_module(module)


def beats_of(channel: str, packed) -> list[str]:
    """Each beat as an initialiser of the channel's structure."""
    size, _ = driver.CHANNELS[channel]
    found = []
    for beat in payload.to_ints(packed):
        fields = driver.unpack(channel, beat.to_bytes(size, "little"))
        members = [f".{name} = {text(value)}" for name, value in fields.items()]
        found.append(f"{{{', '.join(members)}}}")
    return found


def text(value) -> str:
    return f"{{{', '.join(map(text, value))}}}" if isinstance(value, list) else str(value)


def table(name: str, channel: str, packed) -> list[str]:
    """An array of the beats of each step."""
    per_step = len(packed) // count
    beats = beats_of(channel, packed)
    lines = [f"static const struct veda_core_{channel} {name}[STEPS][{per_step}] = {{"]
    for step in range(count):
        lines.append(f"{{{', '.join(beats[step * per_step : (step + 1) * per_step])}}},")
    return [*lines, "};"]


stimulus = stimuli_of(block, parameters, load_trace(None), count, seed=1)[0]
inputs, outputs = stimulus.inputs, stimulus.outputs
rows = len(stimulus.memories["memory"].contents)
lines = [
    f'#include "{module}.h"',
    f"#define STEPS {count}",
    f"#define KV_BEATS {len(inputs['kv']) // count}",
    f"#define Q_BEATS {len(inputs['q']) // count}",
    f"#define O_BEATS {len(outputs['o']) // count}",
    f"#define MEMORY_ROWS {rows}",
    *table("commands", "input_command", inputs["command"]),
    *table("kvs", "input_kv", inputs["kv"]),
    *table("queries", "input_q", inputs["q"]),
    *table("outputs", "output_o", outputs["o"]),
    *table("reports", "output_report", outputs["report"]),
]
(folder / "steps.h").write_text("\n".join([*lines, ""]))

ports = {
    p["name"]: p["width"] for p in json.loads((folder / f"{module}.json").read_text())["ports"]
}
lines = [
    f"`define DEVICE {module}",
    f"`define DEVICE_DATA {ports['m_axi_rdata']}",
    f"`define DEVICE_ID {ports['m_axi_rid']}",
]
(folder / "device.vh").write_text("\n".join([*lines, ""]))
