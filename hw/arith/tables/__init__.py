"""Tables that arithmetic units are made of."""
