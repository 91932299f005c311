"""ToPick: attention that prunes tokens on the leading bits of their keys, out of order."""
