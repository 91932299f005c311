"""Areas of the papers' cores by unit, beside the papers' tables: `sim areas`."""
