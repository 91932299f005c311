"""Policies of the command ``eval`` from text: defaults, types, refusals."""

import pytest

from golden import InputError
from golden.algorithms.lad import LocalityAwareAttention
from golden.algorithms.veda import VotingAttention
from golden.evaluation.policies import POLICIES, describe, parameters, parse


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_is_described_and_its_defaults_can_be_written(name):
    """The policies shown by the help can be typed."""
    text = describe(name).replace("capacity,", "capacity=48,").replace("prompt,", "prompt=9,")
    policy = parse(text)
    assert policy.name == name
    assert set(policy.parameters) == set(parameters(name))
    for key, parameter in parameters(name).items():
        if parameter.default is not parameter.empty:
            assert policy.parameters[key] == parameter.default, key


def test_values_have_their_types():
    policy = parse("lad:bounds=-8/-2.5,window=4,identification=bounds,near=-1")
    assert policy.parameters == {
        "bounds": (-8.0, -2.5),
        "window": 4,
        "identification": "bounds",
        "near": -1.0,
    }
    assert isinstance(policy.attention(), LocalityAwareAttention)
    policy = parse("voting:capacity=8,reserved=2,protect_reserved=true,scale=none")
    assert policy.parameters["protect_reserved"] is True and policy.parameters["scale"] is None
    assert isinstance(policy.attention(prompt=3), VotingAttention)
    exact = parse("voting:capacity=8,bit_exact=true,rows=32,reserved=4")
    assert exact.parameters["bit_exact"] is True and exact.parameters["rows"] == 32
    assert isinstance(exact.attention(), VotingAttention)
    assert parse("kllm:activation_bits=none").parameters == {"activation_bits": None}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("votin", "there is no 'votin'; did you mean voting?"),
        ("", "there is no ''; known: dense, streaming,"),
        ("voting", "voting needs capacity=…"),
        ("voting:", "voting needs capacity=…"),
        ("voting:capacty=3", "voting has no 'capacty'; did you mean capacity?"),
        ("voting:capacity", "give capacity once, as capacity=VALUE"),
        ("voting:capacity=3,capacity=4", "give capacity once, as capacity=VALUE"),
        ("voting:capacity=many", "capacity must be a number, not 'many'"),
        ("voting:capacity=2.5", "capacity must be a number, not '2.5'"),
        ("voting:capacity=9,protect_reserved=perhaps", "must be true or false, not 'perhaps'"),
        ("voting:capacity=0", "capacity must be at least 1, not 0"),
        ("lad:bounds=-1/x", "bounds must be a number, not '-1/x'"),
        ("lad:identification=guess", "identification must be centres, codes or bounds, not guess"),
        ("kllm:samples=3", "kllm has no 'samples'"),
        ("snapkv:capacity=64", "snapkv needs prompt=…"),
        ("dense:scale=nan", "scale must be above 0 and finite, not nan"),
        ("topick:scale=0", "scale must be above 0 and finite, not 0.0"),
        ("unicaim_core:top_k=-1", "top_k must be at least 1, not -1"),
        ("unicaim_core:heavy=0", "heavy must be at least 1, not 0"),
        ("kllm:outliers=-1", "outliers must be at least 0, not -1"),
        ("kllm:rows=9", "rows: bit_exact must be true, since floats have no parts"),
        ("kllm:tuned=true,weight_bits=none", "tuned: weights must be quantised"),
    ],
)
def test_refusals(text, sentence):
    with pytest.raises(InputError) as raised:
        parse(text)
    assert sentence in str(raised.value)
    assert str(raised.value).startswith(f"policy {text}: ")


def test_attentions_of_all_layers():
    policy = parse("unicaim:top_k=9")
    made = policy.attentions(3, prompt=7, seed=40)
    assert [attention._options.seed for attention in made] == [40, 41, 42]
    assert all(attention._prompt == 7 and attention._top_k == 9 for attention in made)
    made = parse("unicaim:seed=5").attentions(2, seed=40)
    assert [attention._options.seed for attention in made] == [5, 5]
    assert len({id(attention) for attention in parse("kllm").attentions(4)}) == 4
    assert "rope" not in parameters("streaming")


def test_a_default_of_the_caller_counts_unless_the_text_says_otherwise():
    policy = parse("snapkv:capacity=64", prompt=7)
    assert policy.attention(prompt=7)._prompt == 7
    assert parse("snapkv:capacity=64,prompt=5", prompt=7).attention(prompt=7)._prompt == 5
