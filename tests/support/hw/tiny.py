"""A tiny Liberty library whose tables are planes, so that delays can be worked out by hand.

In nanoseconds and picofarads; a plane (c, s, l) is c + s * slew + l * load with slew in ps and load
in fF, as the reader gives them.
"""

SLEWS, LOADS = (0.0, 100.0), (0.0, 10.0)  # ps, fF


def table(kind: str, plane: tuple[float, float, float], swapped: bool = False) -> str:
    constant, per_slew, per_load = plane
    rows, columns = (LOADS, SLEWS) if swapped else (SLEWS, LOADS)
    values = []
    for row in rows:
        slews_loads = [(column, row) if swapped else (row, column) for column in columns]
        numbers = [constant + per_slew * slew + per_load * load for slew, load in slews_loads]
        values.append('"' + ", ".join(f"{number / 1000:.6f}" for number in numbers) + '"')
    return f"{kind} ({'swapped' if swapped else 'plain'}) {{ values ({', '.join(values)}); }}"


def timing(related: str, sense: str, planes: dict, kind: str = "", swapped: bool = False) -> str:
    tables = "\n".join(table(name, plane, swapped) for name, plane in planes.items())
    kind = kind and f"timing_type : {kind};"
    return f'timing () {{ related_pin : "{related}"; {kind} timing_sense : {sense};\n{tables}\n}}\n'


def planes(rise, fall, rise_slew, fall_slew) -> dict:
    return {
        "cell_rise": rise,
        "cell_fall": fall,
        "rise_transition": rise_slew,
        "fall_transition": fall_slew,
    }


def gate(name: str, area: float, function: str, inputs: str, arcs: str) -> str:
    pins = "".join(
        f"pin ({pin}) {{ direction : input; capacitance : 0.002;"
        " rise_capacitance : 0.002; fall_capacitance : 0.001; }\n"
        for pin in inputs
    )
    return (
        f"cell ({name}) {{ area : {area};\n{pins}"
        f'pin (Y) {{ direction : output; function : "{function}"; max_capacitance : 0.1;\n'
        f"{arcs}}} }}\n"
    )


INVERTER = planes((10, 0.1, 2), (20, 0.2, 1), (4, 0, 1), (8, 0.5, 2))
BUFFER = planes((5, 0, 3), (7, 0, 1), (2, 0, 1), (3, 0, 2))
SLOW = planes((100, 0, 0), (200, 0, 0), (5, 0, 0), (6, 0, 0))
CLOCK_TO_Q = planes((50, 0, 1), (60, 0, 1), (10, 0, 0), (20, 0, 0))
FLIP_FLOP = """cell (F) {{ area : 9; ff (IQ, IQN) {{ next_state : "D"; clocked_on : "CK"; }}
pin (CK) {{ direction : input; clock : true; capacitance : 0.001; }}
pin (D) {{ direction : input; capacitance : 0.002;
timing () {{ related_pin : "CK"; timing_type : setup_rising;
{setup} }} }}
pin (Q) {{ direction : output; function : "IQ"; max_capacitance : 0.1;
{clocked} }} }}
"""
SETUP = {"rise_constraint": (30, 0.5, 0), "fall_constraint": (25, 0.25, 0)}


def library(*more: str, swapped: bool = False) -> str:
    """The text; with `swapped`, tables are over load first."""
    templates = "".join(
        f"lu_table_template ({name}) {{\n"
        f"variable_1 : {axes[0][0]}; variable_2 : {axes[1][0]};\n"
        f'index_1 ("{axes[0][1]}"); index_2 ("{axes[1][1]}"); }}\n'
        for name, axes in {
            "plain": (
                ("input_net_transition", "0, 0.1"),
                ("total_output_net_capacitance", "0, 0.01"),
            ),
            "swapped": (
                ("total_output_net_capacitance", "0, 0.01"),
                ("input_net_transition", "0, 0.1"),
            ),
        }.items()
    )
    setup = "\n".join(
        f'{kind} (setup) {{ values ("{(a + b * 0) / 1000}", "{(a + b * 100) / 1000}"); }}'
        for kind, (a, b, _) in SETUP.items()
    )
    clocked = timing("CK", "non_unate", CLOCK_TO_Q, "rising_edge")
    cells = [
        gate("N", 1, "!A", "A", timing("A", "negative_unate", INVERTER, swapped=swapped)),
        gate("B", 1.5, "A", "A", timing("A", "positive_unate", BUFFER, swapped=swapped)),
        gate(
            "NAND",
            2,
            "!(A & B)",
            "AB",
            timing("A", "negative_unate", INVERTER) + timing("B", "negative_unate", SLOW),
        ),
        gate("X", 4, "A ^ B", "AB", "".join(timing(p, "non_unate", INVERTER) for p in "AB")),
        FLIP_FLOP.format(setup=setup, clocked=clocked),
        *more,
    ]
    return (
        "/* Copyright of nobody. */\n"
        'library (tiny) { delay_model : table_lookup; time_unit : "1ns";\n'
        'voltage_unit : "1V"; capacitive_load_unit (1, pf);\n'
        f"{templates}"
        "lu_table_template (setup) { variable_1 : constrained_pin_transition;\n"
        'index_1 ("0, 0.1"); }\n'
        f"{''.join(cells)}}}\n"
    )


LATCH = """cell (L) { area : 5; latch (IQ, IQN) { data_in : "D"; enable : "E"; }
pin (D) { direction : input; } pin (E) { direction : input; }
pin (Q) { direction : output; function : "IQ"; } }
"""
