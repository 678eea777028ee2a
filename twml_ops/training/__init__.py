"""What a training is. It knows neither the command line nor the console."""
