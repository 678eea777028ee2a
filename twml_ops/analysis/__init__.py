"""What a trained model does with its features and scores."""
