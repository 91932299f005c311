"""All figures of the study, plain numbers."""

import dataclasses
from typing import Any

from golden.studies.unicaim_circuit import arrays, lines, rows, senses
from golden.studies.unicaim_circuit.setting import Setting


def measure(setting: Setting) -> dict[str, Any]:
    """Figures by name; takes half a minute of one processor, mostly `recall`."""
    return {
        "setting": dataclasses.asdict(setting),
        "cells": lines.cells(setting),
        "search": lines.search(setting),
        "order": lines.order(setting),
        "read_voltages": lines.read_voltages(setting),
        "inverse": lines.inverse(setting),
        "devices": lines.devices(setting),
        "linearity": lines.linearity(setting),
        "linear_points": lines.linear_points(setting),
        "query_products": senses.query_products(setting),
        "references": senses.references(setting, arrays.TOP),
        "numbers": senses.numbers(setting),
        "search_lengths": senses.search_lengths(setting),
        "first_row": senses.first_row(setting),
        "charge": arrays.charge(setting),
        "evictions": arrays.evictions(setting),
        "energy": arrays.energy(setting),
        "deviations": arrays.deviations(setting),
        "recall": arrays.recall(setting),
        "clock": rows.clock(setting),
        "calibration": rows.calibration(setting),
    }
