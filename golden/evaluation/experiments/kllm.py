"""KLLM, Tables II and IV: perplexity of K-Means and rounded products, and the outliers' share."""

from golden.evaluation.plots import curves
from golden.evaluation.section import Claim, Opened, Results, Run, Section, Table, Verdict

TOKENS = 512
PRECISIONS = {"W4A4": 4, "W4A3": 3}
METHODS = {
    "RTN": "rtn:activation_bits={bits}",
    "KLLM-S": "kllm:activation_bits={bits},thresholds=static",
    "KLLM": "kllm:activation_bits={bits}",
    "KLLM, Fisher": "kllm:activation_bits={bits},fisher=true",
}
SHARES = (0.005, 0.01, 0.02, 0.05, 0.1)
PAPER = {"W4A4": (8e3, 6.08, 6.04), "W4A3": (2e4, 7.60, 7.17)}
"""LLaMA-7B, WikiText-2: RTN, KLLM-S, KLLM; FP16 has 5.68 (Table II)."""
PARTS = {
    "weights only": "kllm:activation_bits=none",
    "activations only": "kllm:weight_bits=none",
}


def runs(tokens: int) -> list[Run]:
    length = min(tokens, TOKENS)
    methods = [form.format(bits=bits) for bits in PRECISIONS.values() for form in METHODS.values()]
    return [
        Run(policy, length) for policy in ("dense", *methods, *_shares().values(), *PARTS.values())
    ]


def _shares() -> dict[tuple[str, str, float], str]:
    """Policies of Table IV by precision, method and share of outliers."""
    return {
        (precision, method, share): f"{METHODS[method].format(bits=bits)},outlier_share={share:g}"
        for precision, bits in PRECISIONS.items()
        for method in ("KLLM-S", "KLLM")
        for share in SHARES
    }


def extras(opened: Opened) -> dict:
    """Nothing but the runs."""
    return {}


def section(tokens: int, results: Results, extras: dict) -> Section:
    length = min(tokens, TOKENS)

    def score(policy: str) -> float:
        return results[Run(policy, length)].perplexity

    dense = score("dense")
    table = {
        precision: {name: score(form.format(bits=bits)) for name, form in METHODS.items()}
        for precision, bits in PRECISIONS.items()
    }
    claims = []
    for precision, (rtn, static, dynamic) in PAPER.items():
        ours = table[precision]
        claims.append(
            Claim(
                f"{precision}: RTN {rtn:g}, KLLM-S {static}, KLLM {dynamic} (FP16: 5.68, LLaMA-7B)",
                ", ".join(f"{name} {value:.4g}" for name, value in ours.items())
                + f" (dense: {dense:.2f})",
                Verdict.of(
                    ours["RTN"] > 10 * ours["KLLM"],
                    ours["KLLM-S"] > ours["KLLM"],
                    ours["KLLM"] < 1.1 * dense,
                ),
                "counts as reproduced when RTN is ten times worse, KLLM-S worse, and KLLM within"
                " a tenth of dense; a small model has less to spare than one of 7 billion",
            )
        )
    shares = {key: score(policy) for key, policy in _shares().items()}
    curves_of = {
        f"{precision} {method}": [shares[precision, method, share] for share in SHARES]
        for precision in PRECISIONS
        for method in ("KLLM-S", "KLLM")
    }
    falls = {
        name: sum(a > b for a, b in zip(y[:-1], y[1:], strict=True))
        for name, y in curves_of.items()
    }
    claims.append(
        Claim(
            "a larger share of outliers lowers perplexity in every configuration (Table IV;"
            " W4A4 KLLM: 6.11 at 0.5 %, 5.58 at 10 %)",
            ", ".join(f"{name} {y[0]:.2f} to {y[-1]:.2f}" for name, y in curves_of.items()),
            Verdict.of(*(fallen == len(SHARES) - 1 for fallen in falls.values())),
        )
    )
    better = [
        shares[p, "KLLM", share] < shares[p, "KLLM-S", share]
        for p in PRECISIONS
        for share in SHARES
    ]
    claims.append(
        Claim(
            "outliers found for each token (KLLM) do better than fixed thresholds (KLLM-S) at every"
            " share and precision (Table IV)",
            f"at {sum(better)} of {len(better)}",
            Verdict.of(*better),
        )
    )
    rows = [
        [name, *(f"{table[precision][name]:.4g}" for precision in PRECISIONS)] for name in METHODS
    ]
    rows += [[f"KLLM, {part}", f"{score(policy):.4g}", ""] for part, policy in PARTS.items()]
    picture = curves(
        [100 * share for share in SHARES],
        curves_of,
        "outliers, % of the activations",
        "perplexity",
        line=("dense", dense),
        log_x=True,
        log_y=True,
    )
    share_rows = [
        [name, *(f"{value:.2f}" for value in values)] for name, values in curves_of.items()
    ]
    return Section(
        "KLLM: matrix products on K-Means indices (Tables II and IV)",
        f"Paper: seven models of 7 to 70 billion parameters, WikiText-2, 2048 tokens. Here:"
        f" {length} tokens, one window; dense {dense:.2f}; all seven matrices of each layer.",
        claims,
        [
            Table("Perplexity", ["method", *PRECISIONS], rows),
            Table(
                "Perplexity with a share of outliers",
                ["", *(f"{share:.1%}" for share in SHARES)],
                share_rows,
            ),
        ],
        [("kllm", "perplexity against the share of outliers", picture)],
    )
