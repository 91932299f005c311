"""Rules of a DRAM's commands, checked over a list of them, without the model's own state.

Each rule is stated between pairs of commands, as data sheets do, and looked up by a search back
through the list: slow, and unlike the model.
"""

from sim.core.dram.standards import Standard

Command = tuple[int, str, int, int]
"""Clock, command, bank (of PREA and REF the rank), row."""


def broken_rules(s: Standard, commands: list[Command]) -> list[str]:
    """One sentence for each broken rule of one channel's commands, in order of time."""
    found = []
    of_rank = s.groups * s.banks
    row_of: dict[int, int | None] = {}
    buses: dict[tuple[int, bool], str] = {}
    for at, (clock, command, bank, row) in enumerate(commands):
        bus = clock, s.split_commands and command in ("RD", "WR")
        if bus in buses:
            found.append(f"{clock}: {command} and {buses[bus]} in one clock")
        buses[bus] = command
        whole = command in ("PREA", "REF")
        rank = bank if whole else bank // of_rank
        banks = range(rank * of_rank, (rank + 1) * of_rank) if whole else [bank]
        opened = [row_of.get(b) for b in banks]
        if command in ("ACT", "REF") and any(r is not None for r in opened):
            found.append(f"{clock}: {command} with an open row")
        if command in ("RD", "WR") and opened != [row]:
            found.append(f"{clock}: {command} of a row that is not open")
        for b in banks:
            if command in ("PRE", "PREA"):
                row_of[b] = None
            if command == "ACT":
                row_of[b] = row
        longest = max(s.refresh, s.row_cycle + s.write_recovery + s.burst + s.write_latency)
        activates = 0
        for before, earlier, other, _ in reversed(commands[:at]):
            if clock - before > longest:
                break
            gap = _least(s, earlier, other, command, bank)
            if clock - before < gap:
                found.append(f"{clock}: {command} {clock - before} after {earlier}, not {gap}")
            if command == earlier == "ACT" and other // of_rank == rank:
                activates += 1
                if activates == 4 and clock - before < s.four_activates:
                    found.append(f"{clock}: the fifth ACT within {s.four_activates}")
    return found


def _least(s: Standard, first: str, where: int, then: str, place: int) -> int:
    """Clocks from one command to a later one, at least."""
    of_rank = s.groups * s.banks
    ranks = [
        bank if command in ("PREA", "REF") else bank // of_rank
        for command, bank in ((first, where), (then, place))
    ]
    bank = where == place and "REF" not in (first, then) and "PREA" not in (first, then)
    same_rank, same_group = ranks[0] == ranks[1], where // s.banks == place // s.banks
    if (first, then) == ("ACT", "ACT"):
        if bank:
            return s.row_cycle
        if not same_rank:
            return 0
        return s.activate_long if same_group else s.activate_short
    columns = ("RD", "WR")
    if first in columns and then in columns:
        if first == then:
            if not same_rank:
                return s.burst + s.turnaround
            return max(s.burst, s.column_long if same_group else s.column_short)
        if first == "RD":
            return s.read_latency + s.burst + s.turnaround - s.write_latency
        if not same_rank:
            return s.write_latency + s.burst + s.turnaround - s.read_latency
        after = s.write_to_read_long if same_group else s.write_to_read_short
        return s.write_latency + s.burst + after
    closes = then in ("PRE", "PREA")
    in_bank = bank or then == "PREA" and same_rank
    if first == "ACT":
        if closes and in_bank:
            return s.row_active
        if then in columns and bank:
            return s.activate_to_column
        return s.row_cycle if then == "REF" and same_rank else 0
    if first == "RD" and closes and in_bank:
        return s.read_to_precharge
    if first == "WR" and closes and in_bank:
        return s.write_latency + s.burst + s.write_recovery
    if first in ("PRE", "PREA") and then in ("ACT", "REF"):
        of_bank = bank or (same_rank and (first == "PREA" or then == "REF"))
        return s.precharge if of_bank else 0
    if first == "REF" and then in ("ACT", "REF", "PRE", "PREA") and same_rank:
        return s.refresh
    return 0
