"""What cores of attention share: arrays of products, softmax, and the shell of a decode core."""
