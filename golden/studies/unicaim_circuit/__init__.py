"""The command ``unicaim-circuit``: UniCAIM's sense line as a circuit, Figs. 5 to 9 drawn again."""
