"""Verdicts and tables on the errors of K-Means and on outliers (KLLM, sections I, II-A, III-A)."""

from collections.abc import Sequence

from golden.studies.study import CLOSE, Claim, Table, Verdict, close
from sim.studies.kllm.noise import LayerNoise, LayerOutliers, Noise, ScoreNoise

GAUSSIAN = 0.683
"""Share of a normal distribution within its standard deviation."""
CENTROIDS, THRESHOLDS = (0.14, 0.01), 0.29
"""Fig. 2: root mean square errors between two data sets, of centroids with outliers and without,
and of upper thresholds."""
QUERIED = "attn"
"""Part of the name of layers whose inputs are also Wq's, as in Fig. 2."""


def noise_claims(noise: Noise) -> list[Claim]:
    """What K-Means gains over uniform levels, and what the outliers do."""
    return [
        _gaussian(noise.outliers),
        _uniform(noise.layers),
        _contributors([of for of in noise.layers if of.bits == 3]),
        *_fig_2([of for of in noise.outliers if QUERIED in of.layer]),
        _scores(noise.scores),
    ]


def interval(values: Sequence[float], form: str = ".2f") -> str:
    """The least and the largest of some figures."""
    return f"{min(values):{form}} to {max(values):{form}}"


def _gaussian(layers: Sequence[LayerOutliers]) -> Claim:
    weights = [of.weights_within for of in layers]
    inputs = [of.inputs_within for of in layers]
    return Claim(
        "weights and activations are distributed like Gaussians, most values near the mean"
        " (section I)",
        f"weights {interval(weights)}, inliers {interval(inputs)} within their root mean square",
        Verdict.of(*(all(close(x, GAUSSIAN) for x in of) for of in (weights, inputs))),
        f"of a Gaussian {GAUSSIAN}, by a tenth; a channel of weights, a token of inputs without 1 %"
        " of outliers, which have longer tails all the same. The model's file has weights of 4"
        " bits in blocks",
    )


def _uniform(layers: Sequence[LayerNoise]) -> Claim:
    gains = {
        (of.layer, of.bits, what): pair
        for of in layers
        for what, pair in (
            ("weights", of.uniform_weights / of.weights),
            ("inputs", of.uniform / of.inputs),
        )
    }
    more = [gains[name, 3, what] > gain for (name, bits, what), gain in gains.items() if bits == 4]

    def told(what: str) -> str:
        parts = (
            f"{interval([x for key, x in gains.items() if key[1:] == (bits, what)])} at {bits} bits"
            for bits in (4, 3)
        )
        return f"{what} {', '.join(parts)}"

    return Claim(
        "K-Means has less quantisation noise than uniform levels, above all at low precision"
        " (sections I and III-A)",
        f"noise of uniform levels over K-Means: {told('weights')}; {told('inputs')}",
        Verdict.of(all(x > 1 for x in gains.values()), all(more)),
        f"root mean squares, outliers exact in both; more at 3 bits in {sum(more)} of {len(more)}."
        " Uniform levels are the better of symmetric ones and from least to largest",
    )


def _contributors(layers: Sequence[LayerNoise]) -> Claim:
    outliers = [of.plain / of.uniform for of in layers]
    levels = [of.uniform / of.inputs for of in layers]
    return Claim(
        "non-uniform K-Means is the most effective of the steps from RTN to KLLM (Fig. 11, W4A3)",
        f"1 % of outliers exact: {interval(outliers)} times less noise of inputs, K-Means for"
        f" uniform levels {interval(levels)} times less",
        Verdict.of(*(b > a for a, b in zip(outliers, levels, strict=True))),
        "the figure has no step for outliers, but K-Means's perplexity with sample weights is"
        " KLLM-S's of Table II, which keeps them exact, as RTN does not: the step to K-Means has"
        " both. Perplexity is not measured step by step here",
    )


def _fig_2(layers: Sequence[LayerOutliers]) -> list[Claim]:
    pairs = [(of.centroids, of.inlier_centroids) for of in layers]
    wanted = CENTROIDS[0] / CENTROIDS[1]
    return [
        Claim(
            f"without the 0.5 % largest and smallest values centroids of two data sets are"
            f" {CENTROIDS[1]} apart instead of {CENTROIDS[0]} (Fig. 2a, b)",
            ", ".join(
                f"{of.layer} {a:.2f} → {b:.2f}" for of, (a, b) in zip(layers, pairs, strict=True)
            ),
            Verdict.of(
                all(b < a for a, b in pairs), all(a / b >= (1 - CLOSE) * wanted for a, b in pairs)
            ),
            "root mean square between centroids of the halves of one text, of a token's values over"
            f" their largest; reproduced when all are nearer, and {wanted:.0f} times less a tenth."
            " Few tokens; the paper has two texts of 128 tokens and the first layer",
        ),
        Claim(
            f"upper thresholds of two data sets differ by {THRESHOLDS} (Fig. 2c)",
            ", ".join(f"{of.layer} {of.threshold:.2f}" for of in layers),
            Verdict.ASSUMED
            if all(of.threshold >= (1 - CLOSE) * THRESHOLDS for of in layers)
            else Verdict.NOT,
            "root mean square of a token's own threshold from the mean of the other half, over that"
            " mean, if that is what the figure pairs: within one text fixed thresholds are off by"
            " as much",
        ),
    ]


def _scores(found: Sequence[ScoreNoise]) -> Claim:
    alike = [close(of.integers, of.kmeans) for of in found]
    ratios = [of.integers / of.kmeans for of in found]
    return Claim(
        "quantising attention scores to integers and by K-Means yields similar perplexity"
        " (section III-A)",
        f"errors of attention's outputs by integers {interval(ratios, '.1f')} times K-Means's",
        Verdict.REPRODUCED if all(alike) else Verdict.UNKNOWN,
        "perplexity of K-Means scores is not measured here. Integers have evenly spaced levels and"
        " most scores are far below a row's largest, so that they become 0; exact largest scores"
        " help both. The loss with integers is among the steps of [KLLM's algorithm](kllm.md)",
    )


def noise_tables(noise: Noise) -> list[Table]:
    """The errors by layer."""
    form = "{{.{}:.3f}}".format
    layers = ("uniform_weights", "weights", "plain", "uniform", "inputs")
    outliers = ("weights_within", "inputs_within", "range")
    halves = ("centroids", "inlier_centroids", "threshold")
    names = {
        "uniform_weights": "weights, uniform",
        "weights": "weights, K-Means",
        "plain": "inputs, uniform",
        "uniform": "… outliers exact",
        "inputs": "… and K-Means",
        "weights_within": "weights within",
        "inputs_within": "inliers within",
        "range": "range",
        "centroids": "centroids",
        "inlier_centroids": "… without outliers",
        "threshold": "threshold",
    }
    return [
        Table.of(
            "Errors of quantised weights and inputs, root mean squares over the values' own. A"
            " scale a channel or a token; 1 % of outliers; K-Means of inputs is fitted to the"
            " first half of the tokens, errors are of the second",
            noise.layers,
            ("layer", "{.layer}"),
            ("bits", "{.bits}"),
            *((names[name], form(name)) for name in layers),
        ),
        Table.of(
            "Outliers. *Within*: share within the root mean square. *Range*: a token's largest over"
            " its inliers'. *Centroids*: apart in the halves of the tokens. *Threshold*: of a token"
            " from the other half's mean",
            noise.outliers,
            ("layer", "{.layer}"),
            *((names[name], form(name)) for name in (*outliers, *halves)),
        ),
        Table.of(
            "Errors of attention's outputs by scores of 4 bits, over the outputs' size",
            noise.scores,
            ("layer of the trace", "{.layer}"),
            ("largest scores exact", "{.kept}"),
            ("integers", "{.integers:.3f}"),
            ("K-Means", "{.kmeans:.3f}"),
        ),
    ]
