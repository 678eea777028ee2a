"""One module per package; each defines CONTENDERS: task -> name -> function that prepares it."""
