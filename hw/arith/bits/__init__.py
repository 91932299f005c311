"""Operations on bits that arithmetic units are made of."""
