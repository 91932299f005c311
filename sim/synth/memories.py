"""Energy of memories on the chip, which a library of cells does not have.

A memory is macros of MACRO_BITS side by side, each as deep as the memory, so that an access of a
part of a row is of the macros that have it. A macro of 1024 rows takes 10 pJ, and that times the
root of its depth otherwise: 64 bits of a memory of 8 KB, 32 KB and 1 MB take 10, 20 and 100 pJ at
45 nm and 0.9 V (M. Horowitz, Computing's energy problem, ISSCC 2014, Fig. 1.1.9), and the root
gives 10, 20 and 113. Outside the table is the other check: VEDA's buffer of 256 KB takes 148.8 mW
in 28 nm at 1 GHz (Table I), and 256 bytes in each cycle by the model, times 28 / 45, 199 mW. The
macros that OpenROAD's scripts have beside the library (fakeram45, CACTI's figures, 1.1 V) are a
third: an access of 512 rows of 64 bits takes 10.6 pJ, as here, and of 2048 rows of 39 13.7 pJ for
12.9.

LEAKAGE_NW is from these macros at 25 °C: 25.1 nW a bit of the first, 23.5 of the second. It is of
fast devices, as the cells are; memories made for low power leak a hundredth of it.

Energies are at the voltage of the library's cells.
"""

import math

MACRO_BITS, MACRO_ROWS = 64, 1024
MACRO_PJ, MACRO_VOLTS = 10.0, 0.9
LEAKAGE_NW = 24.3
"""Leakage of a bit, at the library's voltage."""


def access_pj(rows: int, bits: float, volts: float) -> float:
    """Energy of reading or writing some bits of a row of a memory with that many rows."""
    scale = (volts / MACRO_VOLTS) ** 2
    return MACRO_PJ * scale * bits / MACRO_BITS * math.sqrt(rows / MACRO_ROWS)
