"""How good a model is on problems it was not trained on."""
