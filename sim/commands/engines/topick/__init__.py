"""Engines of ToPick."""
